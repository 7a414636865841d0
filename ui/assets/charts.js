// The curves of loss, gradient norm and speed, with marks of what happened, and the timeline of workers.
"use strict";

const MARKS = {
  clip: ["clipped update", "--x", "tick"],
  skip: ["skipped update", "--warn", "line"],
  replay: ["replayed step", "--u", "line"],
  rewind: ["rewind to a checkpoint", "--bad", "line"],
  plan: ["plan change", "--f", "line"],
  lost: ["worker lost", "--bad", "dot"],
  joined: ["worker joined", "--good", "dot"],
};

/** Colours of the theme by name: reading one from the style takes longer than drawing with it. */
const colours = new Map();

function css(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colours.get(name);
}

/** The mean of the values around each, which leaves out what is not finite; it lags behind nothing. */
function smoothed(values, around) {
  const sums = [0], counts = [0];
  values.forEach((value, index) => {
    sums.push(sums[index] + (value ?? 0));
    counts.push(counts[index] + (value == null ? 0 : 1));
  });
  return values.map((value, index) => {
    // As many on both sides: at the ends fewer.
    const reach = Math.min(around, index, values.length - 1 - index);
    const from = index - reach, to = index + reach + 1;
    const count = counts[to] - counts[from];
    return count ? (sums[to] - sums[from]) / count : null;
  });
}

/** Fewest steps that keys zoom to, and pixels below which a finger has tapped and not dragged. */
const ZOOM_STEPS_MIN = 4, DRAG_PIXELS_MIN = 10;

/** The first and the last step that are shown after a key: nearer, farther or to a side; null for all of them. */
function zoomed([min, max], key, [first, last]) {
  const span = max - min;
  const wide = Math.max(ZOOM_STEPS_MIN, span * ({ "+": .5, "=": .5, "-": 2 }[key] ?? 1));
  if (wide >= last - first) return null;
  const middle = (min + max) / 2 + span / 4 * ({ ArrowLeft: -1, ArrowRight: 1 }[key] ?? 0);
  const from = Math.min(Math.max(first, middle - wide / 2), last - wide);
  return [from, from + wide];
}

class Charts {
  constructor(elements, onZoom) {
    this.elements = elements;
    this.onZoom = onZoom;
    this.plots = {};
    this.range = null;
    this.log = false;
    this.smooth = true;
    this.steps = null;
    this.marks = [];
    // Places of the last curve at which marks of each kind were drawn.
    this.marked = {};
    new ResizeObserver(() => this.resize()).observe(elements.loss);
    for (const element of Object.values(elements)) element.addEventListener("keydown", event => this.press(event));
  }

  /** Zooms by a key while a chart has the focus; of a page without steps and of other keys nothing is taken. */
  press(event) {
    const steps = this.steps?.step, isOther = event.ctrlKey || event.metaKey || event.altKey;
    if (isOther || !steps?.length || !["+", "=", "-", "ArrowLeft", "ArrowRight"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    const all = [steps[0], steps.at(-1)];
    this.zoomTo(zoomed(this.range ?? all, event.key, all));
  }

  /** Shows the steps from a first to a last; null for all of them. */
  zoomTo(range) {
    this.range = range;
    this.onZoom(!!range);
    this.redraw();
  }

  /** Zooms to what was selected, by a mouse or a finger. */
  onSelect(plot) {
    const { left, width } = plot.select;
    if (!width) return;
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (width >= DRAG_PIXELS_MIN) this.zoomTo([left, left + width].map(at => plot.posToVal(at, "x")));
  }

  /** Selects by a finger or a pen that is dragged over the curve; up and down scrolls the page. uPlot has the mouse. */
  followTouch(plot) {
    const { over } = plot;
    let from = null;
    const at = event => Math.min(Math.max(0, event.clientX - over.getBoundingClientRect().left), over.clientWidth);
    const select = (left, width, isDone) => plot.setSelect({ left, width, top: 0, height: over.clientHeight }, isDone);
    over.addEventListener("pointerdown", event => {
      if (event.pointerType !== "mouse" && event.isPrimary) from = at(event);
    });
    over.addEventListener("pointermove", event => {
      if (from == null || !event.isPrimary) return;
      const to = at(event);
      plot.setCursor({ left: to, top: 0 });
      select(Math.min(from, to), Math.abs(to - from), false);
    });
    const end = event => {
      if (from == null || !event.isPrimary) return;
      const to = at(event), wide = Math.abs(to - from), left = Math.min(from, to);
      from = null;
      plot.setCursor({ left: -10, top: -10 });
      // Cancelled: the browser scrolls with it.
      select(left, event.type === "pointerup" ? wide : 0, true);
    };
    for (const name of ["pointerup", "pointercancel"]) over.addEventListener(name, end);
  }

  resize() {
    for (const [name, plot] of Object.entries(this.plots)) {
      const box = this.elements[name];
      plot.setSize({ width: box.clientWidth, height: box.clientHeight });
      // It stands where the cursor was.
      box.tip?.remove();
    }
  }

  /** Removes the curves. */
  clear() {
    for (const plot of Object.values(this.plots)) plot.destroy();
    this.plots = {};
  }

  /** Removes the curves with their steps: they are of another run. */
  forget() {
    this.clear();
    this.steps = null;
    this.range = null;
    this.onZoom(false);
  }

  /** Draws again with the colours of the theme. */
  restyle() {
    this.clear();
    this.redraw();
  }

  options(name, series, values) {
    const box = this.elements[name];
    const axis = {
      stroke: css("--quiet"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false },
      font: "12px system-ui, sans-serif", gap: 4,
    };
    return {
      width: box.clientWidth, height: box.clientHeight, legend: { show: false }, padding: [10, 12, 0, 0],
      cursor: {
        sync: { key: "run" }, drag: { x: true, y: false, setScale: false }, points: { size: 7 },
      },
      scales: {
        x: { time: false, range: (plot, min, max) => this.range ?? (min === max ? [min - 1, max + 1] : [min, max]) },
        y: this.log ? { distr: 3 } : { range: (plot, min, max) => spread(min, max) },
      },
      axes: [
        { ...axis, size: 26, values: (plot, ticks) => ticks.map(tick => tick % 1 ? "" : tick.toLocaleString("en")) },
        { ...axis, size: 52, values: (plot, ticks) => ticks.map(tick => tick == null ? "" : values(tick)) },
      ],
      series: [{}, ...series],
      hooks: {
        ready: [plot => this.followTouch(plot)],
        drawClear: [plot => this.drawMarks(plot)],
        setCursor: [plot => this.onCursor(name, plot)],
        setSelect: [plot => this.onSelect(plot)],
      },
    };
  }

  reset() {
    this.zoomTo(null);
  }

  redraw() {
    if (this.steps) this.draw(this.steps, this.held, this.marks);
  }

  draw(steps, held, marks) {
    this.steps = steps;
    this.held = held;
    this.marks = marks;
    if (!steps.step.length) return;
    const around = Math.min(200, Math.max(1, Math.round(steps.step.length / 80)));
    const heldAt = new Map(held);
    const lossData = [
      steps.step, steps.loss, this.smooth ? smoothed(steps.loss, around) : steps.loss,
      steps.step.map(step => heldAt.get(step) ?? null),
    ];
    const normData = [steps.step, steps.gnorm, this.smooth ? smoothed(steps.gnorm, around) : steps.gnorm];
    const curve = (colour, isFaint) => ({
      stroke: isFaint ? fade(css(colour), .3) : css(colour), width: isFaint ? 1 : 1.8,
      points: { show: steps.step.length < 3 }, spanGaps: true,
    });
    this.show("loss", lossData, () => [
      curve("--loss", this.smooth), curve("--loss", false),
      { stroke: css("--held"), width: 0, paths: () => null, points: { show: true, size: 7, fill: css("--held") } },
    ], value => value.toPrecision(3));
    this.show("norm", normData, () => [curve("--norm", this.smooth), curve("--norm", false)],
      value => value >= 1e4 || value < .01 && value > 0 ? value.toExponential(0) : value.toPrecision(2));
    const rates = steps.tokens_per_s;
    const rateData = [steps.step, rates, this.smooth ? smoothed(rates, around) : rates];
    this.show("rate", rateData, () => [curve("--rate", this.smooth), curve("--rate", false)],
      value => value >= 1e4 ? `${Number((value / 1e3).toPrecision(3))}k` : Number(value.toPrecision(3)).toString());
  }

  show(name, data, series, values) {
    const key = `${this.log}${this.smooth}`;
    if (this.plots[name] && this.plots[name].madeFor !== key) {
      this.plots[name].destroy();
      delete this.plots[name];
    }
    if (!this.plots[name]) {
      this.elements[name].replaceChildren();
      this.plots[name] = new uPlot(this.options(name, series(), values), data, this.elements[name]);
      this.plots[name].madeFor = key;
    } else {
      this.plots[name].setData(data);
    }
  }

  /** Marks lie below the curves: thin lines for decisions, dots at the edge for members. A pixel has a kind once, and lines are
   * rectangles: thousands of marks are drawn as fast as few. */
  drawMarks(plot) {
    const { ctx, bbox: { left, top, width, height } } = plot;
    const ratio = devicePixelRatio, thin = Math.max(1, Math.round(1.2 * ratio));
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    const places = (kind, steps) => {
      const found = new Set(steps.map(step => Math.round(plot.valToPos(step, "x", true))).filter(x => x >= left - 9 && x <= left + width + 9));
      this.marked[kind] = found.size;
      return found;
    };
    const of = kind => places(kind, this.marks.filter(mark => mark.kind === kind && mark.step != null).map(mark => mark.step));
    const lines = kind => {
      ctx.fillStyle = fade(css(MARKS[kind][1]), .8);
      for (const x of of(kind)) ctx.fillRect(x, top, thin, height);
    };
    // Nothing else is drawn yet: what is cleared of these lines makes dashes of them.
    lines("plan");
    for (let y = 3 * ratio; y < height; y += 6 * ratio) ctx.clearRect(left, top + y, width, 3 * ratio);
    const kinds = Object.entries(MARKS);
    for (const [kind, [, , shape]] of kinds) if (shape === "line" && kind !== "plan") lines(kind);
    ctx.fillStyle = fade(css(MARKS.clip[1]), .75);
    const steps = this.steps?.step ?? [];
    for (const x of places("clip", steps.filter((step, at) => this.steps.verdicts[at] === "c"))) {
      ctx.fillRect(x, top + height - 5 * ratio, thin, 5 * ratio);
    }
    for (const [kind, [, colour, shape]] of kinds) {
      if (shape !== "dot") continue;
      ctx.fillStyle = fade(css(colour), .8);
      ctx.beginPath();
      for (const x of of(kind)) {
        const y = top + (kind === "lost" ? 5 : 13) * ratio;
        ctx.moveTo(x, y);
        ctx.arc(x, y, 3.6 * ratio, 0, 7);
      }
      ctx.fill();
    }
    ctx.restore();
  }

  onCursor(name, plot) {
    const box = this.elements[name];
    box.tip?.remove();
    const index = plot.cursor.idx;
    if (index == null || plot.cursor.left < 0) return;
    const steps = this.steps, step = steps.step[index];
    const near = this.marks.filter(mark => MARKS[mark.kind] && mark.step != null &&
      Math.abs(plot.valToPos(mark.step, "x") - plot.cursor.left) < 7);
    const verdict = { c: "clipped", s: "skipped" }[steps.verdicts[index]];
    const held = new Map(this.held).get(step);
    const figures = {
      loss: () => `loss ${figure(steps.loss[index], 4)}${held != null ? `, held-out ${figure(held, 4)}` : ""}`,
      norm: () => `norm ${figure(steps.gnorm[index], 4)}, lr ${steps.lr[index].toExponential(2)}`,
      rate: () => `${thousands(steps.tokens_per_s[index])} tokens a second, ${duration(steps.ms[index] / 1000)} a step`,
    };
    const lines = [
      `step ${step.toLocaleString("en")}${verdict ? ", " + verdict : ""}`,
      figures[name](),
      ...(name === "loss" ? near.slice(-4).map(mark => mark.text) : []),
    ];
    const tip = document.createElement("div");
    tip.className = "plot-tip";
    for (const line of lines) tip.append(Object.assign(document.createElement("div"), { textContent: line }));
    box.append(tip);
    const left = plot.cursor.left + plot.over.offsetLeft;
    const isLeft = left > box.clientWidth / 2;
    tip.style.left = isLeft ? "" : `${left + 14}px`;
    tip.style.right = isLeft ? `${box.clientWidth - left + 14}px` : "";
    box.tip = tip;
  }
}

function figure(value, digits) {
  return value == null ? "not finite" : value.toFixed(digits);
}

/** A range with a margin; of equal ends one around them. */
function spread(min, max) {
  if (min == null) return [0, 1];
  const margin = (max - min) * .06 || Math.abs(max) * .1 || 1;
  return [min - margin, max + margin];
}

/** A colour `#rgb` or `#rrggbb` with this opacity. */
function fade(colour, opacity) {
  const digits = colour.length === 4 ? [...colour.slice(1)].map(digit => digit + digit).join("") : colour.slice(1, 7);
  return `#${digits}${Math.round(opacity * 255).toString(16).padStart(2, "0")}`;
}

/** Sizes a canvas to its box in the device's pixels, and returns what draws on it. */
function paper(canvas, height) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  canvas.style.height = `${height}px`;
  const wide = Math.round(width * ratio), high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

/** How many workers were there, with a dot for each that joined or was lost. */
function drawTimeline(canvas, marks, workersNow, nowMs) {
  const { pen, width, height } = paper(canvas, 54);
  const events = marks.filter(mark => mark.kind === "joined" || mark.kind === "lost" || mark.kind === "draining");
  const left = 30, right = width - 8, top = 8, bottom = height - 16;
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = css("--quiet");
  if (!marks.length || nowMs == null) return;
  const from = marks[0].at_ms, span = Math.max(nowMs - from, 1000);
  const x = at => left + (right - left) * Math.min(1, Math.max(0, (at - from) / span));
  // The count is known now; before an event it was one less or one more.
  const counts = [];
  let count = workersNow;
  for (const event of [...events].reverse()) {
    counts.push([event.at_ms, count]);
    if (event.kind === "lost") count += 1;
    if (event.kind === "joined") count = Math.max(0, count - 1);
  }
  counts.reverse();
  const most = Math.max(1, count, ...counts.map(([, found]) => found));
  const y = found => bottom - (bottom - top) * found / most;
  pen.beginPath();
  pen.moveTo(left, y(count));
  let last = count;
  for (const [at, found] of counts) {
    pen.lineTo(x(at), y(last));
    pen.lineTo(x(at), y(found));
    last = found;
  }
  pen.lineTo(right, y(last));
  pen.strokeStyle = css("--accent");
  pen.lineWidth = 1.6;
  pen.stroke();
  pen.lineTo(right, bottom);
  pen.lineTo(left, bottom);
  pen.closePath();
  pen.fillStyle = fade(css("--accent"), .12);
  pen.fill();
  for (const event of events) {
    pen.fillStyle = css({ joined: "--good", lost: "--bad", draining: "--warn" }[event.kind]);
    pen.beginPath();
    pen.arc(x(event.at_ms), bottom, 3, 0, 7);
    pen.fill();
  }
  pen.fillStyle = css("--quiet");
  pen.textAlign = "right";
  pen.fillText(String(most), left - 6, top + 8);
  pen.fillText("0", left - 6, bottom + 2);
  pen.textAlign = "left";
  pen.fillText(new Date(from).toLocaleTimeString("en-GB"), left, height - 3);
  pen.textAlign = "right";
  pen.fillText("now", right, height - 3);
}

// The pipeline of a step: for each stage a lane as it was measured, and below it one as planned.
"use strict";

const OPERATIONS = {
  "forward": ["F forward", "--f"],
  "input gradient": ["B input gradient", "--b"],
  "weight gradient": ["W weight gradient", "--w"],
  "early weight gradient": ["W weight gradient", "--w"],
  "both gradients": ["B+W", "--b"],
  "forward again": ["recompute", "--e"],
  "gate": ["gate: waits for the verdict", "--g"],
  "update": ["report, update, verdict", "--u"],
  "reduce": ["exchange", "--e"],
  "copy out": ["copy out of memory, and back", "--c"],
  "copy back": ["copy out of memory, and back", "--c"],
  "version": ["versions of weights", "--x"],
  "average": ["average of weights", "--u"],
  "dynamic region": ["order found as it runs", "--x"],
  "evaluation": ["held-out", "--x"],
};

/** How lanes are drawn with more stages than this: pixels of a measured lane, of one planned, between both and below them. */
const LANE_SIZES = [[256, 2, 1, 0, 0], [64, 4, 2, 2, 0], [24, 8, 4, 2, 0], [12, 13, 6, 2, 5], [0, 19, 9, 2, 5]];

/** Lanes as they are kept: ten bytes an operation. */
function packed({ counts, operations, start_us, duration_us }) {
  return {
    counts: Uint32Array.from(counts), operations: Uint16Array.from(operations),
    start: Float32Array.from(start_us), duration: Float32Array.from(duration_us),
  };
}

/** When the last operation ends, in microseconds. */
const endOf = ({ start, duration }) => start.reduce((most, at, row) => Math.max(most, at + duration[row]), 0);

class Lanes {
  constructor(canvas, tip) {
    this.canvas = canvas;
    this.tip = tip;
    this.forget();
    canvas.addEventListener("pointermove", event => this.point(event));
    canvas.addEventListener("pointerleave", () => this.describe(null));
    new ResizeObserver(() => this.draw(this.lanes)).observe(canvas.parentElement);
  }

  /** Nothing is drawn: no lane, no operation, and none of any category. */
  forget() {
    Object.assign(this, { places: [], drawn: 0, categories: new Set() });
  }

  draw(lanes) {
    this.lanes = lanes;
    this.forget();
    const measured = lanes?.measured, planned = lanes?.planned.lanes;
    const stages = lanes ? Math.max(measured.counts.length, planned.counts.length) : 0;
    // With many stages lanes get thinner, and the planned ones stay.
    const [, high, low, apart, below] = LANE_SIZES.find(([more]) => stages > more) ?? LANE_SIZES.at(-1);
    const row = high + apart + low + below;
    const foot = 20, { pen, width, height } = paper(this.canvas, stages ? stages * row + foot + 6 : 90);
    pen.font = "11.5px system-ui, sans-serif";
    pen.fillStyle = css("--quiet");
    if (!stages) {
      pen.textAlign = "center";
      pen.fillText("Lanes appear once whole steps were measured.", width / 2, height / 2);
      return;
    }
    this.operations = [...lanes.planned.operations, ...lanes.operations];
    const left = stages > 24 ? 34 : 58, right = width - 6, isMeasured = measured.start.length > 0;
    const span = Math.max(endOf(measured), 1), plannedSpan = Math.max(endOf(planned), 1);
    // A step that was hindered beside a plan that cannot be seen would compare nothing.
    const isStretched = isMeasured && (span > 3 * plannedSpan || plannedSpan > span);
    this.plannedNote = isStretched ? `planned, ${(plannedSpan / 1000).toPrecision(3)} ms, drawn as wide as measured` : "planned, on the same scale";
    const colours = this.operations.map(({ category }) => css((OPERATIONS[category] ?? ["", "--x"])[1]));
    const scale = (right - left) / span, plannedScale = isStretched || !isMeasured ? (right - left) / plannedSpan : scale;
    const upper = { kind: "measured", lanes: measured, first: 0, left, scale, high, colours };
    const lower = { kind: "planned", lanes: planned, first: 0, left, scale: plannedScale, high: low, colours: colours.map(colour => fade(colour, .5)) };
    for (let stage = 0; stage < stages; stage++) {
      const top = 2 + stage * row;
      if (stages <= 24 || stage % 8 === 0) {
        pen.textAlign = "right";
        pen.fillStyle = css("--quiet");
        pen.fillText(stages > 24 ? stage : `stage ${stage}`, left - 8, top + Math.max(high, 9) - 5);
      }
      pen.fillStyle = css("--soft");
      pen.fillRect(left, top, right - left, high);
      this.lane(pen, upper, stage, top);
      this.lane(pen, lower, stage, top + high + apart);
    }
    this.scale(pen, span, us => left + us * scale, height - foot + 6);
  }

  /** Draws the lane of a stage, whose operations follow on those of the stage before. */
  lane(pen, lanes, stage, top) {
    const { kind, first, left, scale, high, colours, lanes: { counts, operations, start, duration } } = lanes;
    const end = first + (counts[stage] ?? 0);
    this.places.push({ ...lanes, stage, top, end });
    lanes.first = end;
    let colour = null;
    for (let row = first; row < end; row++) {
      const from = left + start[row] * scale, wide = Math.max(duration[row] * scale, .6);
      if (colours[operations[row]] !== colour) pen.fillStyle = colour = colours[operations[row]];
      pen.fillRect(from, top, Math.max(wide - .6, .6), high);
      this.categories.add(this.operations[operations[row]].category);
      if (kind === "measured" && wide > 22 && high >= 13) {
        const { name, category } = this.operations[operations[row]];
        pen.fillStyle = category === "gate" ? css("--ink") : "#fff";
        pen.textAlign = "center";
        pen.fillText(name, from + wide / 2, top + high / 2 + 4, wide - 3);
        colour = null;
      }
    }
    this.drawn += end - first;
  }

  scale(pen, span, x, y) {
    const ms = span / 1000, power = 10 ** Math.floor(Math.log10(ms / 4));
    const step = [1, 2, 5, 10].map(factor => factor * power).find(found => ms / found <= 8);
    pen.fillStyle = css("--quiet");
    pen.textAlign = "center";
    for (let at = 0; at <= ms; at += step) {
      pen.fillText(`${Number(at.toPrecision(3))}${at ? "" : " ms"}`, x(at * 1000), y + 9);
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    let found = null;
    for (const place of this.places.filter(({ top, high }) => y >= top - 1 && y <= top + high + 1)) {
      const { left, scale, first, end, lanes: { start, duration } } = place;
      for (let row = first; row < end; row++) {
        const from = left + start[row] * scale;
        if (x >= from - 1 && x <= from + Math.max(duration[row] * scale, 2) + 1) found = { ...place, row };
      }
    }
    this.describe(found);
  }

  describe(found) {
    if (!found) {
      this.tip.textContent = "\u00a0";
      return;
    }
    const { kind, stage, row, lanes: { operations, start, duration } } = found, ms = us => (us / 1000).toFixed(2);
    const { name, category } = this.operations[operations[row]];
    this.tip.textContent = `${name} (${category}), stage ${stage}, ${kind}: ${ms(duration[row])} ms from ${ms(start[row])} ms`;
  }
}

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

class Lanes {
  constructor(canvas, tip) {
    this.canvas = canvas;
    this.tip = tip;
    this.boxes = [];
    canvas.addEventListener("pointermove", event => this.point(event));
    canvas.addEventListener("pointerleave", () => this.describe(null));
    new ResizeObserver(() => this.draw(this.lanes)).observe(canvas.parentElement);
  }

  draw(lanes) {
    this.lanes = lanes;
    this.boxes = [];
    const stages = lanes ? Math.max(lanes.measured.length, lanes.planned.length) : 0;
    // With many stages lanes get thinner, and the planned ones stay.
    const high = stages > 64 ? 4 : stages > 24 ? 8 : stages > 12 ? 13 : 19;
    const low = stages > 64 ? 2 : stages > 24 ? 4 : stages > 12 ? 6 : 9;
    const row = high + low + (stages > 24 ? 2 : 7);
    const foot = 20, { pen, width, height } = paper(this.canvas, stages ? stages * row + foot + 4 : 90);
    pen.font = "11.5px system-ui, sans-serif";
    pen.fillStyle = css("--quiet");
    if (!stages) {
      pen.textAlign = "center";
      pen.fillText("Lanes appear once whole steps were measured.", width / 2, height / 2);
      return;
    }
    const left = stages > 24 ? 34 : 58, right = width - 6;
    const end = list => Math.max(0, ...list.flat().map(slice => slice.start_us + slice.duration_us));
    const span = Math.max(end(lanes.measured), 1), planned = Math.max(end(lanes.planned), 1);
    const x = us => left + (right - left) * us / span;
    // A step that was hindered beside a plan that cannot be seen would compare nothing.
    const isStretched = lanes.measured.length > 0 && (span > 3 * planned || planned > span);
    const plannedX = us => left + (right - left) * us / (isStretched || !lanes.measured.length ? planned : span);
    this.plannedNote = isStretched ? `planned, ${(planned / 1000).toPrecision(3)} ms, drawn as wide as measured` : "planned, on the same scale";
    for (let stage = 0; stage < stages; stage++) {
      const top = 2 + stage * row;
      if (stages <= 24 || stage % 8 === 0) {
        pen.textAlign = "right";
        pen.fillStyle = css("--quiet");
        pen.fillText(stages > 24 ? stage : `stage ${stage}`, left - 8, top + Math.max(high, 9) - 5);
      }
      pen.fillStyle = css("--soft");
      pen.fillRect(left, top, right - left, high);
      this.lane(pen, lanes.measured[stage] ?? [], x, top, high, stage, "measured");
      this.lane(pen, lanes.planned[stage] ?? [], plannedX, top + high + 2, low, stage, "planned");
    }
    this.scale(pen, span, x, height - foot + 6);
  }

  lane(pen, slices, x, top, high, stage, kind) {
    const isPlanned = kind === "planned";
    for (const slice of slices) {
      const colour = (OPERATIONS[slice.category] ?? ["", "--x"])[1];
      const from = x(slice.start_us), wide = Math.max(x(slice.start_us + slice.duration_us) - from, .6);
      pen.fillStyle = isPlanned ? fade(css(colour), .5) : css(colour);
      pen.fillRect(from, top, Math.max(wide - .6, .6), high);
      this.boxes.push({ from, wide, top, high, slice, stage, kind });
      if (!isPlanned && wide > 22 && high >= 13) {
        pen.fillStyle = slice.category === "gate" ? css("--ink") : "#fff";
        pen.textAlign = "center";
        pen.fillText(slice.name, from + wide / 2, top + high / 2 + 4, wide - 3);
      }
    }
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
    const found = this.boxes.filter(lane => y >= lane.top - 1 && y <= lane.top + lane.high + 1 &&
      x >= lane.from - 1 && x <= lane.from + Math.max(lane.wide, 2) + 1);
    this.describe(found.at(-1));
  }

  describe(lane) {
    if (!lane) {
      this.tip.textContent = "\u00a0";
      return;
    }
    const { slice } = lane, ms = us => (us / 1000).toFixed(2);
    this.tip.textContent = `${slice.name} (${slice.category}), stage ${lane.stage}, ${lane.kind}: ` +
      `${ms(slice.duration_us)} ms from ${ms(slice.start_us)} ms`;
  }
}

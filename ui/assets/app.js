// The page: receives messages, keeps what they say, and draws it once a frame at most.
"use strict";

const STEPS_KEPT = 20000, MARKS_KEPT = 2000, LANES_KEPT = 50, ROWS_MAX = 1200, DECISIONS_SHOWN = 200;
const byId = id => document.getElementById(id);
const emptySteps = () => ({
  step: [], at_ms: [], loss: [], gnorm: [], lr: [], ms: [], tokens_per_s: [], bubble: [], bubble_planned: [],
  verdicts: [], attempts: [],
});
const state = {
  source: { state: "connecting" }, status: null, head: null, steps: emptySteps(), held: [], marks: [], lanes: [],
  shown: 0, causes: null, run: null, isReport: false, traceTooLong: null,
};

// ---- small helpers

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") made.className = value;
    else if (key === "width" || key === "left") made.style[key] = value;
    else if (key === "fill") made.style.background = value;
    else made[key] = value;
  }
  made.append(...children.filter(child => child != null));
  return made;
}

const thousands = value => Math.round(value).toLocaleString("en");
const percent = share => share == null ? "–" : `${(100 * share).toFixed(1)} %`;

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < 4) {
    count /= 1024;
    unit += 1;
  }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days > 0) return `${days} d ${hours % 24} h`;
  if (hours > 0) return `${hours} h ${minutes % 60} min`;
  return `${minutes} min ${Math.floor(seconds % 60)} s`;
}

const clock = at => new Date(at).toLocaleTimeString("en-GB");

// ---- messages

function receive(message) {
  switch (message.kind) {
    case "snapshot":
      Object.assign(state, {
        source: message.source, status: message.status, head: message.head, steps: emptySteps(),
        held: message.held_out, marks: message.marks, lanes: [], causes: message.causes, run: message.run ?? null,
      });
      appendSteps(message.steps);
      appendLanes(message);
      break;
    case "source":
      state.source = message;
      break;
    case "status":
      state.status = message.status;
      state.head = message.head;
      break;
    case "added":
      appendSteps(message.steps);
      state.held.push(...message.held_out);
      state.held.splice(0, state.held.length - STEPS_KEPT);
      state.marks.push(...message.marks);
      state.marks.splice(0, state.marks.length - MARKS_KEPT);
      state.causes = message.causes;
      if (message.marks.length) schedule("marks");
      break;
    case "rewound": {
      const kept = state.steps.step.filter(step => step <= message.step).length;
      for (const column of Object.values(state.steps)) column.length = kept;
      state.held = state.held.filter(([step]) => step <= message.step);
      state.lanes = state.lanes.filter(lanes => lanes.step <= message.step);
      break;
    }
    case "another_run":
      Object.assign(state, { steps: emptySteps(), held: [], lanes: [], traceTooLong: null, causes: null });
      for (const mark of state.marks) mark.step = null;
      break;
    case "lanes":
      appendLanes(message);
      break;
  }
  schedule(message.kind);
}

function appendSteps(columns) {
  for (const [name, column] of Object.entries(state.steps)) {
    const added = columns[name];
    for (let index = 0; index < added.length; index++) column.push(added[index]);
    if (column.length > STEPS_KEPT) column.splice(0, column.length - STEPS_KEPT);
  }
}

/** Steps with the planned lanes that they name: those of this message, or of a step before, which are kept once. */
function appendLanes({ plans, lanes, trace_too_long }) {
  const known = new Map(state.lanes.map(({ planned }) => [planned.id, planned]));
  for (const plan of plans) known.set(plan.id, { ...plan, lanes: packed(plan.lanes) });
  state.lanes.push(...lanes.map(({ step, plan, operations, measured }) =>
    ({ step, operations, planned: known.get(plan), measured: packed(measured) })));
  state.lanes.splice(0, state.lanes.length - LANES_KEPT);
  state.traceTooLong = trace_too_long;
}

// ---- drawing, at most once a frame

const dirty = new Set();
let isScheduled = false;

function schedule(...kinds) {
  kinds.forEach(kind => dirty.add(kind));
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    const kinds = new Set(dirty);
    dirty.clear();
    const any = (...names) => names.some(name => kinds.has(name)) || kinds.has("snapshot") || kinds.has("all");
    if (any("source", "status")) drawTop();
    if (any("status", "source", "added")) drawTiles();
    if (any("marks", "rewound", "another_run") || any("added") && areCurvesDue()) drawCharts();
    if (any("lanes", "rewound", "another_run", "status", "added")) drawLanes();
    if (any("status", "marks")) drawNodes();
    if (any("marks")) drawDecisions();
    if (any("status", "added")) drawGroup();
    if (state.run) drawReport();
  });
}

const PHASES = {
  running: ["running", "good"], waiting: ["waiting", "warn"], paused: ["paused", "warn"], done: ["done", "good"],
  stopped: ["stopped", "quiet"], halted: ["halted", "bad"],
};

function drawTop() {
  const { status, source } = state;
  const phase = status?.job ? PHASES[status.job.phase.state] : ["no run", "quiet"];
  byId("phase").textContent = status ? phase[0] : "connecting";
  byId("phase").className = `pill ${phase[1]}`;
  byId("cluster").textContent = status ? [status.cluster.name, status.job?.name].filter(Boolean).join(" / ") : "";
  const step = status?.job ? `${status.job.step}/${status.job.step_count} ` : "";
  document.title = `${step}${status?.cluster.name ?? ""} · zbelastic`;
  const isLive = source.state === "live";
  byId("live").className = `live ${state.isReport ? "" : isLive ? "on" : "off"}`;
  byId("live-text").textContent = state.isReport ? "a report" : isLive ? "live" : source.state;
  const why = source.state === "lost" ? `The cluster does not answer: ${source.reason}. What is shown is of ${
    status ? clock(status.at_ms) : "no time"}; this page goes on by itself.`
    : !state.isReport && status && !isHeld(status) ? "Too few controllers are reachable to decide: steps are not sealed until enough are back."
    : status?.job?.phase.state === "halted" || status?.job?.phase.state === "waiting" ? `The run is ${phase[0]}: ${status.job.phase.reason}` : "";
  byId("banner").className = "banner";
  byId("banner").textContent = why;
  byId("banner").hidden = !why;
  byId("version").textContent = status ? `zbelastic ${status.version}` : "zbelastic";
}

const isHeld = status => status.quorum.reachable.length >= Math.floor(status.quorum.voters.length / 2) + 1;

function tile(name, value, note, share) {
  const small = element("small", { textContent: note ?? "\u00a0", title: note ?? "" });
  const bar = share == null ? null : element("progress", { max: 1, value: share, ariaLabel: name });
  return element("div", { class: "tile" }, element("span", { textContent: name }),
    element("b", { textContent: value }), bar ?? small);
}

function drawTiles() {
  const { status, head, steps } = state;
  const job = status?.job, plan = status?.plan;
  const tiles = [];
  if (job) {
    tiles.push(tile("step", `${thousands(job.step)} / ${thousands(job.step_count)}`, null, job.step / Math.max(1, job.step_count)));
    tiles.push(tile("loss", job.loss == null ? "–" : job.loss.toFixed(4), state.held.length
      ? `held-out ${figure(state.held.at(-1)[1], 4)}` : `norm ${job.gnorm == null ? "–" : job.gnorm.toPrecision(3)}`));
    tiles.push(tile("tokens a second", job.tokens_per_s == null ? "–" : thousands(job.tokens_per_s),
      job.step_ms == null ? null : `${duration(job.step_ms / 1000)} a step`));
    tiles.push(tile("time left", job.step >= job.step_count ? "none" : duration(job.eta_s), job.lr == null ? null : `lr ${job.lr.toExponential(2)}`));
  } else if (steps.step.length) {
    const last = steps.loss.slice(-16), held = state.held.at(-1)?.[1];
    const mean = column => meanOf(column.slice(-64)) ?? 0;
    tiles.push(tile("steps", thousands(steps.step.at(-1)), `lr ${steps.lr.at(-1).toExponential(2)}`));
    tiles.push(tile("loss", figure(last.reduce((sum, loss) => sum + (loss ?? 0), 0) / last.length, 4), `mean of the last ${last.length} steps`));
    if (held != null) tiles.push(tile("held-out loss", figure(held, 4), null));
    tiles.push(tile("tokens a second", thousands(mean(steps.tokens_per_s)), `${duration(mean(steps.ms) / 1000)} a step`));
    tiles.push(tile("bubble", percent(mean(steps.bubble)), `planned ${percent(mean(steps.bubble_planned))}`));
  }
  if (plan) {
    tiles.push(tile("bubble", percent(plan.bubble_measured), plan.bubble_planned == null ? null : `planned ${percent(plan.bubble_planned)}`));
  }
  if (head?.goodput != null) tiles.push(tile("goodput", percent(head.goodput), "of the ideal so far"));
  if (head?.mfu != null) tiles.push(tile("MFU", percent(head.mfu), "of this hardware's peak"));
  if (head) {
    const lost = status.members.filter(member => member.role === "worker" && member.standing.state === "lost").length;
    tiles.push(tile("workers", String(head.workers), lost ? `${lost} lost` : "all there"));
  }
  if (head?.price_left != null) tiles.push(tile("price left", head.price_left.toFixed(2), `${head.price_per_hour.toFixed(2)} an hour`));
  byId("tiles").replaceChildren(...tiles);
}

const charts = new Charts({ loss: byId("loss"), norm: byId("norm"), rate: byId("rate") }, isZoomed => { byId("zoom-out").disabled = !isZoomed; });

/** With more steps than this several share a pixel, and one more moves no curve: they are drawn twice a second. */
const STEPS_AT_ONCE = 4000, CURVES_PAUSE_MS = 500;
let curvesAt = 0, isCurveLate = false;

/** Whether curves are drawn now; if not, they will be. */
function areCurvesDue() {
  const wait = curvesAt + CURVES_PAUSE_MS - performance.now();
  if (state.steps.step.length <= STEPS_AT_ONCE || wait <= 0) return true;
  if (!isCurveLate) setTimeout(() => { isCurveLate = false; schedule("added"); }, wait);
  isCurveLate = true;
  return false;
}

function drawCharts() {
  curvesAt = performance.now();
  if (state.steps.step.length) {
    charts.draw(state.steps, state.held, state.marks);
    return;
  }
  // Another run has begun, or none: the curves of the one before are not its own.
  charts.forget();
  byId("loss").replaceChildren(element("div", { class: "empty", textContent: "No step is sealed yet." }));
  for (const id of ["norm", "rate"]) byId(id).replaceChildren();
}

const lanes = new Lanes(byId("lanes"), byId("lane-tip"));
const CAUSES = [
  ["planned_ms", "as planned", "--w"], ["computation_ms", "slower passes", "--b"], ["messages_ms", "messages", "--f"], ["verdicts_ms", "verdicts", "--u"], ["rest_ms", "rest", "--x"], ["between_ms", "between steps", "--g"],
];

function drawLanes() {
  const { plan, job } = state.status ?? {};
  byId("plan").textContent = plan ? `${plan.schedule}, ${plan.stages.length} stages, window ${plan.window}, generation ${plan.generation}` : "";
  const list = state.lanes, scrub = byId("scrub");
  if (byId("follow").checked || state.shown >= list.length) state.shown = Math.max(0, list.length - 1);
  scrub.max = Math.max(0, list.length - 1);
  scrub.value = state.shown;
  const found = list[state.shown];
  byId("lane-step").textContent = found ? `step ${thousands(found.step)}` : "–";
  if (lanes.lanes !== found || !found || lanes.tooLong !== state.traceTooLong) {
    lanes.tooLong = state.traceTooLong;
    lanes.draw(found);
    drawLaneLegend(found);
  }
  if (plan) drawCauses(plan.bubble_measured, plan.bubble_planned);
  // A report has no status: its steps say what they waited.
  else if (state.run) drawCauses(meanOf(state.steps.bubble), meanOf(state.steps.bubble_planned));
}

function drawLaneLegend(found) {
  const shown = new Map();
  for (const [kind, [name, colour]] of Object.entries(OPERATIONS)) if (lanes.categories.has(kind)) shown.set(name, colour);
  byId("lane-legend").replaceChildren(
    ...[...shown].map(([name, colour]) => element("span", {}, element("i", { fill: `var(${colour})` }), name)),
    found ? element("span", {}, `upper lane: measured; lower: ${lanes.plannedNote}`) : "",
    state.traceTooLong ? element("span", { textContent: `the trace of the last steps has ${bytes(state.traceTooLong)}, too much for this page; train leaves it as trace.json, for Perfetto` }) : "");
}

/** The mean of the numbers that are known. */
function meanOf(column) {
  const known = column.filter(value => value != null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

/** Where the time of a step went: the planned part, and each cause of more. */
function drawCauses(measured, planned) {
  const { causes } = state;
  const text = `bubble ${percent(measured)} measured${planned == null ? "" : `, ${percent(planned)} planned`}`;
  if (!causes) {
    byId("bubble").replaceChildren(element("span", { class: "quiet", textContent: text }));
    return;
  }
  const parts = CAUSES.map(([key, name, colour]) => [Math.max(0, causes[key]), name, colour]);
  const total = parts.reduce((sum, [ms]) => sum + ms, 0) || 1;
  const stack = element("div", { class: "stack" }, ...parts.map(([ms, , colour]) => element("i", { width: `${100 * ms / total}%`, fill: `var(${colour})` })));
  const legend = element("div", { class: "legend" }, element("span", { textContent: `${total.toFixed(1)} ms a step since the plan began:` }),
    ...parts.map(([ms, name, colour]) => element("span", {}, element("i", { fill: `var(${colour})` }), `${name} ${ms.toFixed(1)} ms`)),
    element("span", { textContent: text }));
  byId("bubble").replaceChildren(stack, legend);
}

/** A long activity of a member, as `status` has it, with how far it is. */
function activityText([kind, { done, total, layer, hash }]) {
  const name = kind.replaceAll("_", " ");
  if (total == null) return [name, layer ?? hash?.slice(0, 12) ?? ""].join(" ").trim();
  return kind === "evaluating" ? `${name} ${done} of ${total} passes` : `${name} ${bytes(done)} of ${bytes(total)}`;
}

function memberState(member) {
  const { standing } = member;
  const since = member.last_heard_ms != null && member.last_heard_ms > 2000 ? `, silent for ${duration(member.last_heard_ms / 1000)}` : "";
  if (standing.state === "lost") return `lost: ${standing.reason}`;
  if (member.left_out) return `left out: ${member.left_out}`;
  const isStandby = member.role === "worker" && member.stage == null;
  const activity = Object.entries(member.work?.activity ?? {}).map(activityText);
  const disk = member.disk?.low ? [`disk low, ${bytes(member.disk.free)} free`] : [];
  return [standing.state, ...(isStandby ? ["standby"] : []), ...activity, ...disk].join(", ") + since;
}

function memoryCell(member) {
  if (!member.memory) return element("td", { class: "mem", textContent: "–" });
  const { memory, memory_used: used, memory_planned: planned } = member;
  const plan = planned == null ? "" : `, ${bytes(planned)} planned`;
  if (used == null) return element("td", { class: "mem", textContent: `${bytes(memory)} offered${plan}` });
  const share = count => `${100 * Math.min(1, count / memory)}%`;
  const mark = planned == null ? null : element("b", { left: share(planned) });
  const bar = element("span", { class: "bar" }, element("i", { width: share(used) }), mark);
  return element("td", { class: "mem", title: `${bytes(used)} of ${bytes(memory)}${plan}` }, bar, bytes(used));
}

function roundTrip(member) {
  return member.round_trip_us == null ? "–" : `${(member.round_trip_us / 1000).toFixed(2)} ms`;
}

/** Where a worker computes: its stage, in which pipeline if there are several, and the stages that it copies. */
function stageText(member, plan) {
  if (member.stage == null) return "–";
  const copies = member.copies_stages.length ? ` (copies ${member.copies_stages.join(", ")})` : "";
  const depth = plan?.replicas > 1 ? plan.stages.length / plan.replicas : 0;
  if (!Number.isInteger(depth) || depth === 0) return `${member.stage}${copies}`;
  return `${member.stage % depth} of replica ${Math.floor(member.stage / depth)}${copies}`;
}

/** The last event of each member, by name: since when it is as it is, and what a notice said. */
function lastMarks() {
  return new Map(state.marks.filter(mark => mark.member).map(mark => [mark.member, mark]));
}

/** The rows of nodes that are drawn, by the member's id, each with what it shows: only those that change are made again. */
let nodeRows = new Map();

function drawNodes() {
  const { status } = state;
  if (!status) return;
  const workers = status.members.filter(member => member.role === "worker");
  const there = workers.filter(member => member.standing.state !== "lost");
  byId("node-count").textContent = `${there.length} of ${workers.length} workers are there`;
  drawTimeline(byId("timeline"), state.marks, there.length, status.at_ms);
  const words = byId("node-filter").value.toLowerCase();
  const rank = member => member.standing.state === "lost" ? 1e7 : member.stage ?? 1e6;
  const found = workers.filter(member => !words || `${member.name} ${member.zone} ${member.device} ${memberState(member)}`.toLowerCase().includes(words));
  found.sort((a, b) => rank(a) - rank(b) || a.id - b.id);
  const marks = lastMarks();
  const rows = new Map(found.slice(0, ROWS_MAX).map(member => [member.id, nodeRow(member, marks.get(member.name), status.plan)]));
  for (const [id, { row }] of nodeRows) {
    const now = rows.get(id)?.row;
    if (!now) row.remove();
    else if (now !== row) row.replaceWith(now);
  }
  nodeRows = rows;
  const body = byId("nodes");
  let next = body.firstChild;
  for (const { row } of rows.values()) {
    if (row === next) next = next.nextSibling;
    else body.insertBefore(row, next);
  }
}

function nodeRow(member, mark, plan) {
  const shown = [member.name, member.standing.state, stageText(member, plan), member.layers ?? "–", member.device, member.zone || "–",
    roundTrip(member), memberState(member)];
  const key = [...shown, member.memory, member.memory_used, member.memory_planned, mark?.at_ms, mark?.text].join("\n");
  const before = nodeRows.get(member.id);
  if (before?.key === key) return before;
  const [name, standing, stage, layers, device, zone, trip, why] = shown;
  const cell = (text, name = "") => element("td", { class: name, textContent: text });
  const last = mark ? element("td", { title: mark.text, textContent: `${TAGS[mark.kind][0]} ${clock(mark.at_ms)}` }) : cell("–");
  const row = element("tr", { class: standing }, element("td", {}, element("span", { class: `dot ${standing}` }), name), cell(stage),
    cell(layers), cell(device), cell(zone), memoryCell(member), cell(trip, "r"), last, cell(why, "why"));
  return { key, row };
}

const TAGS = {
  skip: ["skip", "warn"], replay: ["replay", "warn"], rewind: ["rewind", "bad"], plan: ["plan", ""], running: ["runs", "good"],
  joined: ["joined", "good"], lost: ["lost", "bad"], draining: ["drains", "warn"], checkpoint: ["checkpoint", "quiet"],
  leader: ["leader", ""], quorum: ["quorum", "warn"], run: ["run", ""], warning: ["warning", "warn"],
};

function drawDecisions() {
  const shown = state.marks.slice(-DECISIONS_SHOWN).reverse();
  byId("decisions").replaceChildren(...shown.map(mark => element("li", {},
    element("time", { textContent: clock(mark.at_ms) }),
    element("span", { class: `tag ${TAGS[mark.kind][1]}`, textContent: TAGS[mark.kind][0] }),
    element("p", { textContent: mark.text }))));
}

/** What `run.json` has of a run that ended. */
function runFacts(run) {
  const plan = run.plan ?? {};
  return facts([
    ["steps", `${thousands(run.steps)}${run.interrupted ? ", interrupted" : ""}`],
    ["time", duration(run.seconds)],
    ["parameters", thousands(run.params)],
    ["plan", `${plan.schedule}, ${plan.workers} workers${plan.window == null ? "" : `, window ${plan.window}`}`],
    ["loss", `${figure(run.final_loss, 4)} over the last steps${run.held_out_loss == null ? "" : `, ${figure(run.held_out_loss, 4)} held-out`}`],
    ["digest", run.digest ?? "–"],
    ["version", run.version ?? "–"],
  ]);
}

function drawReport() {
  byId("h-nodes").closest("section").hidden = true;
  byId("h-group").textContent = "The run";
  byId("group").replaceChildren(...runFacts(state.run));
  for (const id of ["controllers", "checkpoints"]) byId(id).closest("table").hidden = true;
  byId("phase").textContent = state.run.interrupted ? "interrupted" : "done";
  byId("phase").className = `pill ${state.run.interrupted ? "warn" : "good"}`;
  byId("version").textContent = `zbelastic ${state.run.version ?? ""}`;
  const name = state.run.name ?? "a run";
  byId("cluster").textContent = state.run.name ?? "";
  document.title = `Report of ${name} · zbelastic`;
  byId("links").hidden = true;
}

function facts(list) {
  return list.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })]);
}

function drawGroup() {
  const { status } = state;
  if (!status) return;
  const named = id => status.members.find(member => member.id === id)?.name ?? `node ${id}`;
  const promise = { kept: "kept", fewer: "fewer than configured", off: "off" };
  byId("group").replaceChildren(...facts([
    ["leader", status.leader == null ? "none" : `${named(status.leader)}, term ${status.term}`],
    ["voters reachable", `${status.quorum.reachable.length} of ${status.quorum.voters.length}`],
    ["commit of an entry", status.commit_latency ? `median ${status.commit_latency.p50_ms.toFixed(1)} ms, longest ${status.commit_latency.max_ms.toFixed(1)} ms` : "–"],
    ["from the last report to the verdict", status.pace?.verdict_us == null ? "–" : `${(status.pace.verdict_us / 1000).toFixed(1)} ms`],
    ["wait for a verdict", status.verdict_wait ? `median ${status.verdict_wait.p50_ms.toFixed(1)} ms, longest ${status.verdict_wait.max_ms.toFixed(1)} ms` : "–"],
    ["copies of each update", status.promise ? `${promise[status.promise.state]}${status.promise.copies != null ? `, ${status.promise.copies}` : `: ${status.promise.reason}`}` : "–"],
    ["state digest", status.job?.digest ? `${status.job.digest.slice(0, 16)}… after step ${thousands(status.job.digest_step)}` : "–"],
  ]));
  byId("controllers").replaceChildren(...status.members.filter(member => member.role === "controller").map(member => {
    const name = element("td", {}, element("span", { class: `dot ${member.standing.state}` }), member.name);
    const isLeader = member.id === status.leader;
    const last = member.id === status.answered_by ? "answers" : member.last_heard_ms == null ? "–" : `${duration(member.last_heard_ms / 1000)} ago`;
    return element("tr", {}, name, element("td", { textContent: isLeader ? "leads" : memberState(member) }),
      element("td", { class: "r", textContent: last }), element("td", { class: "r", textContent: roundTrip(member) }),
      element("td", { class: "r", textContent: member.log_behind == null ? "–" : thousands(member.log_behind) }));
  }));
  byId("checkpoints").replaceChildren(...status.checkpoints.slice(-6).reverse().map(point => {
    const right = text => element("td", { class: "r", textContent: text });
    const age = point.at_ms == null ? "–" : duration(Math.max(0, status.at_ms - point.at_ms) / 1000);
    return element("tr", {}, element("td", { textContent: `step ${thousands(point.step)}` }), right(age), right(bytes(point.bytes)),
      right(String(point.copies)), element("td", { class: "why", textContent: point.holders.map(named).join(", ") || "–" }),
      element("td", { textContent: `${point.digest.slice(0, 8)}…`, title: point.digest }));
  }));
}

// ---- keys, themes, the stream

function scrubBy(by) {
  byId("follow").checked = false;
  state.shown = Math.min(Math.max(0, state.shown + by), Math.max(0, state.lanes.length - 1));
  schedule("lanes");
}

function changeTheme() {
  const root = document.documentElement, order = ["", "light", "dark"];
  const next = order[(order.indexOf(root.dataset.theme ?? "") + 1) % 3];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  try { localStorage.setItem("theme", next); } catch { /* a page without storage forgets it */ }
  restyle();
}

function restyle() {
  colours.clear();
  charts.restyle();
  lanes.draw(lanes.lanes);
  drawLegends();
  schedule("all");
}

function drawLegends() {
  byId("mark-legend").replaceChildren(...Object.values(MARKS).map(([name, colour, shape]) => {
    const sign = element("i", { fill: `var(${colour})` });
    if (shape === "dot") sign.style.borderRadius = "50%";
    else sign.style.width = "3px";
    return element("span", {}, sign, name);
  }));
}

addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=checkbox]):not([type=range])")) return;
  const keys = {
    t: changeTheme, Escape: () => charts.reset(), f: () => { byId("follow").checked ^= 1; schedule("lanes"); },
    ArrowLeft: () => scrubBy(-1), ArrowRight: () => scrubBy(1),
  };
  if (!keys[event.key]) return;
  keys[event.key]();
  if (event.key !== "Escape") event.preventDefault();
});
byId("theme").addEventListener("click", changeTheme);
byId("older").addEventListener("click", () => scrubBy(-1));
byId("newer").addEventListener("click", () => scrubBy(1));
byId("scrub").addEventListener("input", event => scrubBy(event.target.value - state.shown));
byId("follow").addEventListener("change", () => schedule("lanes"));
byId("zoom-out").addEventListener("click", () => charts.reset());
byId("log").addEventListener("change", event => { charts.log = event.target.checked; charts.redraw(); });
byId("smooth").addEventListener("change", event => { charts.smooth = event.target.checked; charts.redraw(); });
byId("node-filter").addEventListener("input", () => schedule("status"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
addEventListener("resize", () => schedule("status"));

function connect() {
  const stream = new EventSource("events");
  stream.onmessage = event => receive(JSON.parse(event.data));
  stream.onerror = () => {
    state.source = { state: "lost", reason: "the connection to zbelastic ui ended" };
    schedule("source");
    if (stream.readyState !== EventSource.CLOSED) return;
    // Refused: too many pages are open, or the session has ended. The browser does not try again.
    fetch("status.json").then(answer => {
      if (answer.status === 401) location.assign("login");
      else setTimeout(connect, 5000);
    }).catch(() => setTimeout(connect, 5000));
  };
}

try { document.documentElement.dataset.theme = localStorage.getItem("theme") ?? ""; } catch { /* the system's theme */ }
if (!document.documentElement.dataset.theme) delete document.documentElement.dataset.theme;
drawLegends();
schedule("all");
const snapshot = byId("snapshot");
if (snapshot) {
  state.isReport = true;
  receive(JSON.parse(snapshot.textContent));
} else {
  connect();
}

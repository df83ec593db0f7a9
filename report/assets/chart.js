
// Draws the run as one SVG: every panel has the same time axis, every column of pixels shows its worst moment.

const SVG = "http://www.w3.org/2000/svg";

function node(name, attributes, parent, text) {
  const el = document.createElementNS(SVG, name);
  for (const key in attributes) el.setAttribute(key, attributes[key]);
  if (text !== undefined) el.textContent = text;
  if (parent) parent.appendChild(el);
  return el;
}

// The first row that ends at or after a time.
function firstRow(run, time) {
  let low = 0, high = run.rows;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (run.reach[mid] < time) low = mid + 1; else high = mid;
  }
  return low;
}

const LEVELS = ["others", "leaked", "live", "cached", "used", "evictable", "running", "waiting"];
const EVENTS = [
  ["retracted", "retracted", "M-4-4H4L0 4Z"],
  ["preempted", "preempted", "M4-4V4L-4 0Z"],
  ["refused", "refused", "M-4-4L4 4M-4 4L4-4"],
  ["aborted", "aborted", "M-4 0H4M0-4V4"],
  ["deferred", "deferred", "M0-4V4"],
  ["evicted", "evicted", "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z"],
  ["changes", "others, leaks", "M0-5L5 0L0 5L-5 0Z"],
];

function stateOf(run, row, after) {
  // Requests that ended with the pass run no longer; of a stretch only the least is known.
  const over = run.merged[row] > 0 ? run.running_less[row] : run.finished[row] + run.aborted[row];
  const room = run.data.capacity_bytes - run.floor - run.free[row];
  const live = after ? 0 : Math.min(run.live[row], run.reserved[row]);
  const rest = Math.max(0, room - run.others[row] - run.leaked[row] - live);
  return {
    others: run.others[row],
    leaked: run.leaked[row],
    live,
    cached: Math.min(run.reserved[row] - live, rest),
    free: run.free[row],
    used: run.used[row],
    evictable: run.evictable[row],
    running: after ? Math.max(0, run.running[row] - over) : run.running[row],
    waiting: after ? run.waiting[row] - run.waiting_less[row] : run.waiting[row],
  };
}

// Columns of [from, to): levels at their worst, counts and tokens summed.
function columns(run, from, to, count) {
  const out = { free: new Float64Array(count).fill(Infinity), prefill: new Float64Array(count) };
  for (const name of LEVELS) out[name] = new Float64Array(count);
  for (const [name] of EVENTS) out[name] = new Float64Array(count);
  out.made = new Float64Array(count);
  out.read = new Float64Array(count);
  const span = to - from;
  const px = (time) => Math.floor((time - from) / span * count);
  const put = (x, state) => {
    const tight = state.free < out.free[x];
    for (const name of ["others", "leaked", "live", "cached"]) {
      if (tight) out[name][x] = state[name];
    }
    if (tight) out.free[x] = state.free;
    for (const name of ["used", "evictable", "running", "waiting"]) out[name][x] = Math.max(out[name][x], state[name]);
  };
  const begin = firstRow(run, from);
  let after = begin > 0 ? stateOf(run, begin - 1, true) : null, filled = 0;
  for (let row = begin; row < run.rows && run.from[row] <= to; row++) {
    const a = Math.max(0, px(run.from[row])), b = Math.min(count - 1, px(run.to[row]));
    if (after) for (let x = filled; x < Math.min(a, count); x++) put(x, after);
    const state = stateOf(run, row, false);
    for (let x = Math.min(a, count - 1); x <= b; x++) put(x, state);
    const here = Math.min(a, count - 1);
    for (const [name] of EVENTS) out[name][here] += run[name][row];
    if (run.prefills[row]) out.prefill[here] = Math.max(out.prefill[here], run.prefill_tokens[row] - run.prefill_less[row]);
    spread(out.read, run.prefill_tokens[row], run, row, from, span, count);
    spread(out.made, run.decode_tokens[row], run, row, from, span, count);
    after = stateOf(run, row, true);
    filled = Math.max(filled, b);
  }
  // After the failure, and after the last record, nothing is known.
  const known = Math.min(count, px(run.end) + 1);
  if (after && !(run.crashRow >= 0 && run.from[run.crashRow] < to)) for (let x = filled; x < known; x++) put(x, after);
  return out;
}

// Tokens of a row over the columns in which it ran.
function spread(out, tokens, run, row, from, span, count) {
  if (!tokens) return;
  const scale = count / span;
  const a = (run.from[row] - from) * scale, b = Math.max(a + 1e-9, (run.to[row] - from) * scale);
  for (let x = Math.max(0, Math.floor(a)); x < Math.min(count, Math.ceil(b)); x++) {
    out[x] += tokens * (Math.min(b, x + 1) - Math.max(a, x)) / (b - a);
  }
}

// A step of 1, 2 or 5 times a power of ten.
function niceStep(span, most) {
  const raw = span / Math.max(1, most);
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  const times = [1, 2, 5, 10].find((n) => n * power >= raw * 0.999999);
  return times * power;
}

function timeStep(span, most) {
  const raw = span / Math.max(1, most) / 1e9;
  if (raw <= 10) return niceStep(span, most);
  const steps = [15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
  return (steps.find((s) => s >= raw) || 604800 * Math.ceil(raw / 604800)) * 1e9;
}

function area(parent, cls, low, high, x0, top, bottom) {
  let there = false, path = "", back = "";
  const flush = () => {
    if (path) node("path", { class: cls, d: path + back + "Z" }, parent);
    path = ""; back = "";
  };
  for (let i = 0; i < high.length; i++) {
    const h = Math.max(top, Math.min(bottom, high[i])), l = Math.max(top, Math.min(bottom, low[i]));
    if (!(l - h > 0.01)) { flush(); continue; }
    there = true;
    const a = x0 + i, b = a + 1;
    path += (path ? "L" : "M") + a + " " + h.toFixed(1) + "H" + b;
    back = "L" + b + " " + l.toFixed(1) + "H" + a + back;
  }
  flush();
  return there;
}

function patterns(svg) {
  const defs = node("defs", {}, svg);
  const make = (id, size, draw) => {
    const p = node("pattern", { id, width: size, height: size, patternUnits: "userSpaceOnUse" }, defs);
    draw(p, size);
  };
  const hatch = (cls, ground, line) => (p, s) => {
    node("rect", { width: s, height: s, class: ground }, p);
    node("path", { class: cls, d: line(s) }, p);
  };
  const slash = (s) => `M-1 ${s + 1}L${s + 1} -1M-1 1L1 -1M${s - 1} ${s + 1}L${s + 1} ${s - 1}`;
  make("p-cached", 6, hatch("s-live", "f-cached", slash));
  make("p-others", 6, hatch("s-others", "f-others", (s) => `M-1 -1L${s + 1} ${s + 1}M-1 ${s - 1}L1 ${s + 1}M${s - 1} -1L${s + 1} 1`));
  make("p-leaked", 6, hatch("s-leaked", "f-leaked", (s) => `M0 ${s / 2}H${s}M${s / 2} 0V${s}`));
  make("p-fixed", 8, hatch("s-fixed", "f-fixed", (s) => `M0 ${s}L${s} 0`));
  make("p-evictable", 5, hatch("s-pool", "f-evictable", (s) => `M0 ${s / 2}H${s}`));
  make("p-wait", 5, hatch("s-wait", "f-wait", (s) => `M${s / 2} 0V${s}`));
  make("p-asked", 6, hatch("s-bad", "f-asked", slash));
}

function chart(run, view, width, mode) {
  const svg = node("svg", { class: "chart", width, "aria-hidden": "true", focusable: "false" });
  patterns(svg);
  const narrow = width < 560;
  const left = narrow ? 62 : 112, right = 12;
  const count = Math.max(40, Math.floor(width - left - right));
  const cols = columns(run, view.from, view.to, count);
  const frame = { svg, run, view, left, count, narrow, cols, y: 8 };
  memoryPanel(frame, mode);
  poolPanel(frame);
  lane(frame, "prefill", narrow ? "prefill" : "prefill, tokens", 38, [["live", cols.prefill]]);
  lane(frame, "running", narrow ? "running" : "running (decode)", 34, [["pool", cols.running]]);
  lane(frame, "waiting", narrow ? "waiting" : "waiting (queue)", 34, [["wait", cols.waiting]]);
  rateLane(frame);
  eventLanes(frame);
  timeAxis(frame);
  marks(frame);
  svg.setAttribute("height", frame.y);
  svg.setAttribute("viewBox", `0 0 ${width} ${frame.y}`);
  return { svg, left, count, bottom: frame.bottom };
}

function label(frame, y, text, cls) {
  return node("text", { x: frame.left - 7, y, class: cls || "dim end" }, frame.svg, text);
}

function rule(frame, y, cls) {
  return node("path", { class: cls || "grid", d: `M${frame.left} ${y + 0.5}h${frame.count}` }, frame.svg);
}

function memoryRange(run, mode) {
  const data = run.data, capacity = data.capacity_bytes;
  const asked = data.crash && run.crashRow >= 0 ? Math.max(0, data.crash.requested_bytes - data.crash.free_bytes) : 0;
  const line = data.need_bytes === null ? null : capacity - data.need_bytes;
  if (mode === "whole") return { low: 0, high: (capacity + asked) * 1.02, line };
  let least = Infinity;
  for (let row = 0; row < run.rows; row++) least = Math.min(least, run.others[row]);
  let low = run.floor + (least === Infinity ? 0 : least);
  if (line !== null) low = Math.min(low, line);
  const room = capacity + asked - low;
  return { low: Math.max(0, low - room * 0.14), high: capacity + asked + room * 0.07, line };
}

function memoryPanel(frame, mode) {
  const { svg, run, left, count, cols } = frame;
  const data = run.data, height = frame.narrow ? 220 : 270;
  const top = frame.y + 12, bottom = top + height;
  const range = memoryRange(run, mode);
  const y = (bytes) => bottom - (bytes - range.low) / (range.high - range.low) * height;
  const step = niceStep((range.high - range.low) / GIB, 7);
  for (let at = Math.ceil(range.low / GIB / step) * step; at <= range.high / GIB; at += step) {
    rule(frame, Math.round(y(at * GIB)));
    label(frame, y(at * GIB) + 4, at.toFixed(Math.max(0, Math.min(3, Math.ceil(-Math.log10(step) - 1e-9)))));
  }
  label(frame, frame.y + 6, "GiB held");
  const clip = "clip-memory";
  node("rect", { x: left, y: top, width: count, height }, node("clipPath", { id: clip }, svg));
  const g = node("g", { "clip-path": `url(#${clip})` }, svg);
  fixedBands(g, run, cols, left, count, y, bottom, mode);
  let below = Float64Array.from(cols.free, (free) => (free === Infinity ? NaN : run.floor));
  for (const name of ["others", "leaked", "live", "cached"]) {
    const above = below.map((low, i) => low + cols[name][i]);
    area(g, "l-" + name, below.map(y), above.map(y), left, top, bottom);
    below = above;
  }
  if (mode !== "whole" && range.low > 0) {
    node("path", { class: "break", d: `M${left - 6} ${bottom - 5}l4 3l4 -6l4 3` }, svg);
  }
  rule(frame, Math.round(y(data.capacity_bytes)), "capacity");
  const at = left + 6;
  node("text", { x: at, y: y(data.capacity_bytes) - 5, class: "halo strong" }, svg, `capacity ${amount(data.capacity_bytes)}`);
  if (range.line !== null) {
    const ly = Math.round(y(range.line));
    const below = ly - y(data.capacity_bytes) < 18;
    rule(frame, ly, "load");
    // The mark on a ship's side.
    node("path", { class: "load-mark", d: `M${at + 1} ${ly + 0.5}h22M${at + 6} ${ly + 0.5}a6 6 0 1 0 12 0a6 6 0 1 0-12 0` }, svg);
    node("text", { x: at + 30, y: below ? ly + 14 : ly - 5, class: "halo load-text" }, svg, frame.narrow ? `load line ${amount(range.line)}` : `load line ${amount(range.line)}: ${amount(data.need_bytes)} for the heaviest pass`);
  }
  frame.memory = { y, top, bottom };
  frame.y = bottom + 14;
  rule(frame, bottom, "base");
}

function fixedBands(g, run, cols, left, count, y, bottom, mode) {
  const known = [];
  for (let i = 0; i < count; i++) known.push(cols.free[i] !== Infinity);
  const from = known.indexOf(true), to = known.lastIndexOf(true) + 1;
  if (from < 0) return;
  let at = 0;
  const band = (cls, low, high, text) => {
    const top = y(high), height = y(low) - top;
    node("rect", { class: cls, x: left + from, y: top, width: to - from, height: Math.max(0, height) }, g);
    if (text && Math.min(height, bottom - top) > 13) {
      node("text", { x: left + 8 + from, y: Math.min(top + 13, bottom - 4), class: "halo" }, g, text);
    }
  };
  if (mode !== "whole") {
    const largest = [...run.data.fixed].sort((a, b) => b[2] - a[2]).slice(0, count > 600 ? 4 : 2);
    const names = largest.map(([, name, bytes]) => `${name} ${(bytes / GIB).toFixed(2)}`).join(", ");
    band("l-fixed", 0, run.floor, `does not move: ${names}, \u2026`);
    return;
  }
  for (const [name, words, bytes] of run.data.fixed) {
    band("l-fixed a-" + name, at, at + bytes, `${words} ${(bytes / GIB).toFixed(2)} GiB`);
    at += bytes;
  }
}

function poolPanel(frame) {
  const { run, left, cols } = frame;
  const height = 74, top = frame.y + 6, bottom = top + height, pool = Math.max(1, run.data.pool_tokens);
  const y = (tokens) => bottom - tokens / pool * height;
  rule(frame, top); rule(frame, bottom, "base");
  label(frame, top + 4, group(pool));
  label(frame, bottom, "0");
  label(frame, (top + bottom) / 2 + 4, frame.narrow ? "pool" : "pool, tokens", "end strong");
  const zero = Float64Array.from(cols.used, () => 0);
  area(frame.svg, "l-pool", zero.map(y), cols.used.map(y), left, top, bottom);
  const both = cols.used.map((used, i) => used + cols.evictable[i]);
  area(frame.svg, "l-evictable", cols.used.map(y), both.map(y), left, top, bottom);
  frame.y = bottom + 8;
}

function lane(frame, id, name, height, layers) {
  const { left, svg } = frame;
  const top = frame.y + 6, bottom = top + height;
  let most = 0;
  for (const [, values] of layers) for (const value of values) most = Math.max(most, value);
  const scale = Math.max(1, most);
  rule(frame, bottom, "base");
  label(frame, top + 8, group(most), "dim end");
  label(frame, bottom - 3, name, "end strong");
  for (const [cls, values] of layers) {
    const high = values.map((value) => bottom - (value > 0 ? Math.max(1, value / scale * height) : 0));
    area(svg, "l-" + cls, values.map(() => bottom), high, left, top, bottom);
  }
  frame.y = bottom + 4;
}

// Tokens a second, over stretches of a few columns.
function rateLane(frame) {
  const { cols, view, count } = frame;
  const wide = 6, seconds = (view.to - view.from) / 1e9 / count;
  const rate = (values) => {
    const out = new Float64Array(count);
    for (let i = 0; i < count; i += wide) {
      let sum = 0;
      const end = Math.min(count, i + wide);
      for (let x = i; x < end; x++) sum += values[x];
      out.fill(sum / ((end - i) * seconds), i, end);
    }
    return out;
  };
  lane(frame, "rate", frame.narrow ? "decode/s" : "decode, tokens/s", 30, [["pool", rate(cols.made)]]);
}

function eventLanes(frame) {
  const { svg, run, left, count, cols } = frame;
  for (const [name, words, shape] of EVENTS) {
    if (!run[name].some((n) => n > 0)) continue;
    const y = frame.y + 10;
    label(frame, y + 4, words, "end strong");
    rule(frame, y + 8);
    let last = -99;
    for (let x = 0; x < count; x++) {
      if (cols[name][x] > 0 && x - last >= 6) {
        node("path", { class: "e-" + name, d: shape, transform: `translate(${left + x + 0.5} ${y})` }, svg);
        last = x;
      }
    }
    frame.y += 19;
  }
}

function timeAxis(frame) {
  const { svg, view, left, count } = frame;
  const span = view.to - view.from, step = timeStep(span, Math.max(2, count / (frame.narrow ? 80 : 110)));
  const y = frame.y + 4;
  node("path", { class: "base", d: `M${left} ${y + 0.5}h${count}` }, svg);
  for (let at = Math.ceil(view.from / step) * step; at <= view.to + step / 1e6; at += step) {
    const x = left + (at - view.from) / span * count;
    node("path", { class: "base", d: `M${x.toFixed(1)} ${y}v5` }, svg);
    const anchor = x < left + 24 ? "dim" : x > left + count - 28 ? "dim end" : "dim mid";
    node("text", { x: anchor === "dim" ? left : x, y: y + 18, class: anchor }, svg, seconds(at, step));
  }
  frame.bottom = y;
  frame.y = y + 28;
}

// The failure: a line through all panels, and in the memory panel what was asked for over what was held.
function marks(frame) {
  const { svg, run, view, left, count, memory } = frame;
  const crash = run.data.crash;
  if (!crash || run.crashRow < 0) return;
  const at = run.from[run.crashRow];
  if (at < view.from || at > view.to) return;
  const x = left + (at - view.from) / (view.to - view.from) * count;
  node("path", { class: "crash", d: `M${x.toFixed(1)} ${memory.top}V${frame.bottom}` }, svg);
  if (crash.requested_bytes > 0) {
    const held = run.data.capacity_bytes - crash.free_bytes;
    const high = memory.y(held + crash.requested_bytes), low = memory.y(held);
    node("rect", { class: "asked", x: x - 9, y: Math.max(memory.top, high), width: 9, height: Math.max(0, low - Math.max(memory.top, high)) }, svg);
  }
  const words = crash.requested_bytes > 0 ? `${amount(crash.requested_bytes)} asked, ${amount(crash.free_bytes)} free` : crash.buffer;
  const flip = x > left + count / 2;
  node("text", { x: flip ? x - 14 : x + 6, y: memory.top + 12, class: "halo bad" + (flip ? " end" : "") }, svg, "\u2715 " + words);
}

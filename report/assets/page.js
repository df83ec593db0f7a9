
// Looks at the run: a cursor on one decision, zoom, links to a moment, light and dark.

const NAMES = ["prefill", "mixed prefill and decode", "decode", "change", "failure", "end", "several"];

function html(name, cls, text, parent) {
  const el = document.createElement(name);
  if (cls) el.className = cls;
  if (text !== undefined) el.textContent = text;
  if (parent) parent.appendChild(el);
  return el;
}

function theme() {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Show the page ${dark() ? "light" : "dark"}`); };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();
}

// "12.01s", "850ms": a time and how exactly it was given.
function readTime(text) {
  const found = /^(\d+(?:\.(\d+))?)(s|ms|us|ns)?$/.exec(text);
  if (!found) return null;
  const unit = { s: 1e9, ms: 1e6, us: 1e3, ns: 1 }[found[3] || "s"];
  return { ns: Number(found[1]) * unit, slack: unit * Math.pow(10, -(found[2] || "").length) / 2 };
}

function rowAtTime(run, time) {
  const near = firstRow(run, time.ns - time.slack);
  let best = -1, score = Infinity;
  for (let row = Math.max(0, near - 1); row < run.rows && run.from[row] <= time.ns + time.slack; row++) {
    const inside = run.from[row] <= time.ns && time.ns <= run.to[row];
    const touches = run.to[row] >= time.ns - time.slack;
    const here = !touches ? 3 : run.doing[row] === 4 ? 0 : inside ? 1 : 2;
    if (here < score || (here === score && here !== 1)) { best = row; score = here; }
  }
  return best < 0 ? Math.min(run.rows - 1, near) : best;
}

function rowAtStep(run, step) {
  for (let row = 0; row < run.rows; row++) {
    const passes = Math.max(run.steps[row], run.doing[row] === 4 ? 1 : 0);
    if (run.step[row] <= step && step < run.step[row] + passes) return row;
  }
  return -1;
}

function range(low, high, words) {
  return low === high ? words(high) : `${words(low)} to ${words(high)}`;
}

function figures(run, row) {
  const data = run.data, bucket = run.merged[row] > 0, out = [];
  const add = (name, value, when) => { if (when !== false) out.push([name, value]); };
  add("from", exactTime(run.from[row]));
  add("lasted", seconds(run.length[row], Math.max(1, Math.pow(10, Math.floor(Math.log10(run.length[row] || 1)) - 3))), run.length[row] > 0);
  const steps = run.steps[row];
  add(steps > 1 ? "steps" : "step", steps > 1 ? `${group(run.step[row])} to ${group(run.step[row] + steps - 1)}` : group(run.step[row]), steps > 0 || run.doing[row] === 4);
  add("prefill passes", group(run.prefills[row]), bucket && run.prefills[row] > 0);
  add("new tokens", group(run.prefill_tokens[row]), run.prefills[row] > 0);
  add("largest prefill", group(run.prefill_tokens[row] - run.prefill_less[row]) + " tokens", bucket && run.prefills[row] > 0);
  add("found in the cache", group(run.prefix_tokens[row]) + " tokens", run.prefix_tokens[row] > 0);
  add("decode tokens", group(run.decode_tokens[row]), run.decode_tokens[row] > 0);
  add("requests in the batch", (bucket ? "at most " : "") + group(run.requests[row]), run.requests[row] > 0);
  if (run.doing[row] === 4 && data.crash) {
    const crash = data.crash;
    add("failed", crash.buffer);
    add("asked", `${amount(crash.requested_bytes)} (${crash.requested_bytes} B)`, crash.requested_bytes > 0);
    add("free", `${amount(crash.free_bytes)} (${crash.free_bytes} B)`, crash.requested_bytes > 0);
    add("live in the allocator", amount(crash.allocated_bytes), crash.allocated_bytes > 0);
    add("cached there", amount(crash.reserved_bytes - crash.allocated_bytes), crash.reserved_bytes > 0);
    add("pass", `${crash.mode}, ${group(crash.tokens)} tokens`, crash.mode !== "");
  } else {
    add("free", range(run.free[row], run.free[row] + run.free_more[row], amount));
    add("live", range(run.live[row] - run.live_less[row], run.live[row], amount), run.live[row] > 0);
    add("held by the allocator", amount(run.reserved[row]), run.reserved[row] > 0);
  }
  add("other programs", amount(run.others[row]), run.others[row] > 0);
  add("leaked", amount(run.leaked[row]), run.leaked[row] > 0);
  const share = (n) => group(n) + ` (${(n / Math.max(1, data.pool_tokens) * 100).toFixed(1)} %)`;
  add("slots in use", range(run.used[row] - run.used_less[row], run.used[row], share));
  add("slots of the cache", share(run.evictable[row]), run.evictable[row] > 0);
  add("running", range(run.running[row] - run.running_less[row], run.running[row], group));
  const waits = group(run.waiting[row] - run.waiting_less[row]);
  add("waiting", bucket ? "at most " + group(run.waiting[row]) : run.waiting_less[row] > 0 ? `${waits} (${group(run.waiting[row])} before it)` : waits);
  if (bucket) {
    for (const name of ["arrived", "admitted", "deferred", "retracted", "preempted", "evicted", "finished", "aborted", "refused", "changes"]) add(name, group(run[name][row]), run[name][row] > 0);
  }
  return out;
}

function value(name, value) {
  if (typeof value === "number" && /_bytes$/.test(name)) return amount(value);
  if (typeof value === "number" && /_ns$/.test(name)) return exactTime(value);
  if (typeof value === "number" && Number.isInteger(value)) return group(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

const MOST_ITEMS = 40;

function fillPanel(run, row, panel) {
  panel.textContent = "";
  if (row < 0) {
    html("h3", "", "Point at the charts", panel);
    html("p", "dim", "The decision under the pointer stands here, with its figures. Click to keep it; the arrow keys step from one to the next.", panel);
    return "";
  }
  const bucket = run.merged[row] > 0;
  const what = bucket ? `${group(run.merged[row] + 1)} passes and changes` : NAMES[run.doing[row]];
  const title = `${seconds(run.from[row], 1e6)}: ${what}`;
  html("h3", run.doing[row] === 4 ? "bad" : "", title, panel);
  const table = html("table", "facts", undefined, panel);
  const list = figures(run, row);
  for (const [name, text] of list) {
    const tr = html("tr", "", undefined, table);
    html("th", "", name, tr).scope = "row";
    html("td", "", text, tr);
  }
  const kept = run.items.get(row);
  if (kept) {
    html("h4", "", "Decisions", panel);
    const ul = html("ul", "items", undefined, panel);
    for (const [form, seq, ...values] of kept.items.slice(0, MOST_ITEMS)) {
      const [kind, names] = run.data.forms[form];
      const li = html("li", "", undefined, ul);
      html("b", "", kind.replace(/_/g, " "), li);
      const words = names.map((name, i) => `${name.replace(/_(bytes|ns|tokens)$/, "").replace(/_/g, " ")} ${value(name, values[i])}`);
      li.append(" " + words.join(", "));
      html("span", "seq", " #" + seq, li);
    }
    const more = Math.max(0, kept.items.length - MOST_ITEMS) + kept.dropped;
    if (more > 0) html("p", "dim", `and ${group(more)} more: plimsoll run FILE --record LOG has them all`, panel);
  }
  return title + "; " + list.slice(1).map(([name, text]) => name + " " + text).join("; ");
}

function toolbar(parent, actions) {
  const bar = html("div", "toolbar", undefined, parent);
  for (const [words, key, act] of actions) {
    const button = html("button", "", words, bar);
    button.type = "button";
    if (key) { button.title = `key ${key}`; button.setAttribute("aria-keyshortcuts", key); }
    button.addEventListener("click", () => act(button));
  }
  return bar;
}

function legend(run, parent) {
  const list = html("ul", "legend", undefined, parent);
  const entries = [["live", "live buffers of the pass"], ["cached", "cached by the allocator"]];
  if (run.others.some((n) => n > 0)) entries.push(["others", "other programs"]);
  if (run.leaked.some((n) => n > 0)) entries.push(["leaked", "leaked"]);
  entries.push(["fixed", "does not move"]);
  if (run.data.crash && run.data.crash.requested_bytes > 0) entries.push(["asked", "asked for, not there"]);
  entries.push(["pool", "slots in use"]);
  if (run.evictable.some((n) => n > 0)) entries.push(["evictable", "prefix cache, evictable"]);
  for (const [cls, words] of entries) {
    const li = html("li", "", undefined, list);
    const swatch = node("svg", { width: 16, height: 12, "aria-hidden": "true" }, li);
    node("rect", { class: (cls === "asked" ? "asked" : "l-" + cls), x: 0.5, y: 0.5, width: 15, height: 11 }, swatch);
    li.append(words);
  }
}

class Viewer {
  constructor(run) {
    this.run = run;
    this.whole = { from: 0, to: run.end * 1.012 };
    this.view = { ...this.whole };
    this.mode = "moves";
    this.row = -1;
    this.kept = false;
    const charts = document.getElementById("charts");
    charts.textContent = "";
    this.panel = document.getElementById("panel");
    this.build(charts);
    this.listen();
  }

  build(charts) {
    const actions = [["Whole run", "0", () => this.zoom(this.whole)]];
    if (this.run.crashRow >= 0) actions.push(["The failure", "c", () => this.toCrash()]);
    actions.push(["Zoom in", "+", () => this.scale(0.5)], ["Zoom out", "-", () => this.scale(2)]);
    actions.push(["Whole device", "d", () => this.device()]);
    const bar = toolbar(charts, actions);
    this.deviceButton = bar.lastChild;
    this.deviceButton.setAttribute("aria-pressed", "false");
    this.box = html("div", "chart-box", undefined, charts);
    const attributes = { tabindex: "0", role: "slider", "aria-label": "Decisions over time", "aria-orientation": "horizontal", "aria-valuemin": "0", "aria-valuemax": String(this.run.rows - 1) };
    for (const key in attributes) this.box.setAttribute(key, attributes[key]);
    legend(this.run, charts);
    html("p", "hint", "Arrow keys step between decisions (with Shift ten at once), Home and End go to the first and last. Drag to zoom, or turn the wheel with Ctrl; 0 shows the whole run. The address keeps the moment: #t=12.5s or #step=100.", charts);
  }

  draw() {
    const width = Math.max(300, Math.floor(this.box.clientWidth));
    this.drawn = chart(this.run, this.view, width, this.mode);
    this.box.replaceChildren(this.drawn.svg);
    this.cursor = node("rect", { class: "cursor", y: 8, height: Math.max(0, this.drawn.bottom - 8), width: 0, x: -9 }, this.drawn.svg);
    // The failure's line stays in sight under the cursor.
    const crash = this.drawn.svg.querySelector(".crash");
    if (crash) this.drawn.svg.insertBefore(this.cursor, crash);
    this.drag = node("rect", { class: "drag", y: 8, height: Math.max(0, this.drawn.bottom - 8), width: 0, x: -9 }, this.drawn.svg);
    this.mark();
  }

  timeAt(x) {
    const part = (x - this.drawn.left) / this.drawn.count;
    return this.view.from + Math.max(0, Math.min(1, part)) * (this.view.to - this.view.from);
  }

  mark() {
    const row = this.row;
    if (row < 0) { this.cursor.setAttribute("width", 0); return; }
    const x = (time) => this.drawn.left + (time - this.view.from) / (this.view.to - this.view.from) * this.drawn.count;
    const from = Math.max(this.drawn.left, x(this.run.from[row])), to = Math.min(this.drawn.left + this.drawn.count, x(this.run.to[row]));
    this.cursor.setAttribute("x", (from - 0.5).toFixed(1));
    this.cursor.setAttribute("width", to < this.drawn.left || from > this.drawn.left + this.drawn.count ? 0 : Math.max(1.5, to - from).toFixed(1));
  }

  select(row, keep) {
    if (row < 0 || row >= this.run.rows) return;
    this.kept = keep;
    if (row !== this.row) {
      this.row = row;
      const words = fillPanel(this.run, row, this.panel);
      this.box.setAttribute("aria-valuenow", String(row));
      this.box.setAttribute("aria-valuetext", words);
    }
    this.mark();
    if (keep) {
      try { history.replaceState(null, "", "#t=" + (this.run.from[row] / 1e9).toFixed(9).replace(/0+$/, "").replace(/\.$/, "") + "s"); } catch (error) { /* Some viewers keep no history. */ }
    }
  }

  // The row at a time: where several are there, the one that matters most.
  nearest(time) {
    const slack = (this.view.to - this.view.from) / this.drawn.count * 2;
    const crash = this.run.crashRow;
    if (crash >= 0 && Math.abs(this.run.from[crash] - time) < slack) return crash;
    const row = Math.min(this.run.rows - 1, firstRow(this.run, time));
    return row > 0 && this.run.from[row] > time && time - this.run.to[row - 1] < this.run.from[row] - time ? row - 1 : row;
  }

  zoom(view) {
    const least = 1e5, span = Math.max(least, view.to - view.from);
    const from = Math.max(0, Math.min(view.from, this.whole.to - span));
    this.view = { from, to: Math.min(this.whole.to, from + span) };
    this.draw();
  }

  scale(factor, about) {
    const middle = about !== undefined ? about : this.row >= 0 ? this.run.from[this.row] : (this.view.from + this.view.to) / 2;
    const from = middle - (middle - this.view.from) * factor;
    this.zoom({ from, to: from + (this.view.to - this.view.from) * factor });
  }

  toCrash() {
    const at = this.run.from[this.run.crashRow], span = Math.min(this.whole.to, Math.max(this.run.end / 40, 2e9));
    this.zoom({ from: at - span * 0.85, to: at + span * 0.15 });
    this.select(this.run.crashRow, true);
  }

  device() {
    this.mode = this.mode === "whole" ? "moves" : "whole";
    this.deviceButton.setAttribute("aria-pressed", String(this.mode === "whole"));
    this.draw();
  }

  show(row) {
    const time = this.run.from[row];
    if (time < this.view.from || time > this.view.to) {
      const span = this.view.to - this.view.from;
      this.zoom({ from: time - span / 2, to: time + span / 2 });
    }
    this.select(row, true);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const by = event.shiftKey ? 10 : 1, last = this.run.rows - 1;
    const to = (row) => this.show(Math.max(0, Math.min(last, row)));
    const keys = {
      ArrowRight: () => to(this.row + by), ArrowUp: () => to(this.row + by),
      ArrowLeft: () => to(this.row < 0 ? last : this.row - by), ArrowDown: () => to(this.row < 0 ? last : this.row - by),
      PageDown: () => to(this.row + 50), PageUp: () => to(this.row - 50),
      Home: () => to(0), End: () => to(last),
      "0": () => this.zoom(this.whole), "+": () => this.scale(0.5), "=": () => this.scale(0.5), "-": () => this.scale(2),
      c: () => this.run.crashRow >= 0 && this.toCrash(), d: () => this.device(),
    };
    const act = keys[event.key];
    if (act) { event.preventDefault(); act(); }
  }

  listen() {
    const at = (event) => event.clientX - this.box.getBoundingClientRect().left;
    let begin = null;
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("pointerdown", (event) => { if (event.button === 0) { begin = at(event); this.box.setPointerCapture(event.pointerId); } });
    this.box.addEventListener("pointermove", (event) => {
      const x = at(event);
      if (begin !== null && Math.abs(x - begin) > 4) {
        this.drag.setAttribute("x", Math.min(x, begin));
        this.drag.setAttribute("width", Math.abs(x - begin));
      } else if (!this.kept) {
        this.select(this.nearest(this.timeAt(x)), false);
      }
    });
    this.box.addEventListener("pointerup", (event) => {
      if (begin === null) return;
      const x = at(event), a = this.timeAt(Math.min(x, begin)), b = this.timeAt(Math.max(x, begin));
      const far = Math.abs(x - begin) > 4;
      begin = null;
      if (far) this.zoom({ from: a, to: b }); else this.select(this.nearest(this.timeAt(x)), true);
    });
    this.box.addEventListener("pointercancel", () => { begin = null; this.drag.setAttribute("width", 0); });
    this.box.addEventListener("dblclick", () => { this.kept = false; this.zoom(this.whole); });
    this.box.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.scale(Math.pow(1.0015, event.deltaY), this.timeAt(at(event)));
    }, { passive: false });
    let width = this.box.clientWidth;
    new ResizeObserver(() => { if (this.box.clientWidth !== width) { width = this.box.clientWidth; this.draw(); } }).observe(this.box);
    addEventListener("hashchange", () => this.fromHash());
  }

  fromHash() {
    const hash = decodeURIComponent(location.hash.slice(1));
    const [name, text] = hash.split("=");
    const time = name === "t" ? readTime(text || "") : null;
    const row = time ? rowAtTime(this.run, time) : name === "step" ? rowAtStep(this.run, Number(text)) : -1;
    if (row < 0) return false;
    this.show(row);
    return true;
  }
}

(function () {
  const root = document.documentElement;
  addEventListener("error", (event) => { root.dataset.error = String(event.message); });
  addEventListener("securitypolicyviolation", (event) => { root.dataset.error = "blocked: " + event.violatedDirective + " " + event.blockedURI; });
  try {
    theme();
    const run = readRun();
    if (run && run.rows > 0) {
      const viewer = new Viewer(run);
      viewer.draw();
      if (!viewer.fromHash()) {
        if (run.crashRow >= 0) { viewer.select(run.crashRow, false); viewer.kept = false; } else fillPanel(run, -1, viewer.panel);
      }
    }
    root.dataset.state = "ready";
  } catch (error) {
    root.dataset.error = String(error && error.stack || error);
  }
  performance.mark("plimsoll-ready");
  root.dataset.openMs = String(Math.round(performance.now()));
})();

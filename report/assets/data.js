"use strict";
// Reads the figures of the page: columns of differences in base64, and the decisions that were kept.

function bytesOf(text) {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

// Sums and products instead of shifts: values go beyond 32 bits.
function column(steps, text, rows) {
  const bytes = bytesOf(text);
  const out = new Float64Array(rows);
  let at = 0, row = 0, before = 0;
  const varint = () => {
    let value = 0, scale = 1;
    for (;;) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
      scale *= 128;
    }
  };
  while (at < bytes.length && row < rows) {
    const code = varint();
    let times = code === 0 ? varint() + 1 : 1;
    const value = !steps ? code : code % 2 ? -(code + 1) / 2 : code / 2;
    while (times-- > 0 && row < rows) {
      before = steps ? before + value : value;
      out[row++] = before;
    }
  }
  return out;
}

function readRun() {
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!data) return null;
  const run = { data, rows: data.rows };
  for (const name of Object.keys(data.columns)) {
    run[name] = column(data.columns[name][0], data.columns[name][1], data.rows);
  }
  run.to = run.from.map((from, i) => from + run.length[i]);
  // A pass may fail while the one before it still runs: ends in the order of rows.
  let reach = 0;
  run.reach = run.to.map((to) => (reach = Math.max(reach, to)));
  run.floor = data.fixed.reduce((sum, part) => sum + part[2], 0);
  run.items = new Map(data.items.map(([row, dropped, items]) => [row, { dropped, items }]));
  run.crashRow = run.doing.indexOf(4);
  run.end = Math.max(data.end_ns, run.rows ? run.reach[run.rows - 1] : 0, 1);
  return run;
}

const GIB = 1073741824, MIB = 1048576, KIB = 1024;

function group(n) {
  return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");
}

function amount(bytes) {
  const [unit, name] = bytes >= GIB ? [GIB, "GiB"] : bytes >= MIB ? [MIB, "MiB"] : bytes >= KIB ? [KIB, "KiB"] : [1, "B"];
  return unit === 1 ? bytes + " B" : (bytes / unit).toFixed(2) + " " + name;
}

// A time with as many decimals as a step of the axis needs.
function seconds(ns, step) {
  const s = ns / 1e9;
  if (step >= 1e9 && ns >= 12e10) {
    const minutes = Math.floor(s / 60), rest = Math.round(s - minutes * 60);
    const hours = Math.floor(minutes / 60);
    if (hours) return hours + " h " + String(minutes % 60).padStart(2, "0") + (rest ? ":" + String(rest).padStart(2, "0") : "");
    return minutes + " min" + (rest ? " " + rest + " s" : "");
  }
  const decimals = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / 1e9) - 1e-9)));
  return s.toFixed(decimals) + " s";
}

function exactTime(ns) {
  const text = (ns / 1e9).toFixed(9);
  return text.replace(/(\.\d{3})(\d{3})(\d{3})$/, "$1\u202f$2\u202f$3") + " s";
}

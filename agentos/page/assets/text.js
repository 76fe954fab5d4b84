// Elements and words. Every text of a run goes through textContent: nothing of it is ever read as HTML.

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A text of a run, isolated, so that one written from right to left does not turn what is around it.
function foreign(text, tag = "bdi") {
  return element(tag, { text: printable(text), dir: "auto" });
}

// Control characters and marks of writing direction are left out.
function printable(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, "");
}

function formatDuration(ms) {
  if (ms < 1) return "< 1 ms";
  if (ms < 99.5) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 0.995) return `${seconds.toFixed(2)} s`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  let left = Math.round(seconds);
  const parts = [];
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count || parts.length) parts.push([count, unit]);
  }
  return parts.slice(0, 2).filter(([count]) => count).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

function formatNumber(value) { return value.toLocaleString("en-US"); }

function pad(value) { return String(value).padStart(2, "0"); }

function formatClock(at, withSeconds = true) {
  const date = new Date(at);
  return `${pad(date.getHours())}:${pad(date.getMinutes())}${withSeconds ? `:${pad(date.getSeconds())}` : ""}`;
}

function formatDay(at) {
  const date = new Date(at);
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
}

const STATE_MARKS = { pending: "○", running: "▶", done: "✓", failed: "✕", interrupted: "◫", parked: "‖" };

function stateLabel(state) {
  return element("span", { class: `state state-${state}` },
    element("span", { class: "mark", "aria-hidden": "true", text: STATE_MARKS[state] || "•" }), ` ${state}`);
}

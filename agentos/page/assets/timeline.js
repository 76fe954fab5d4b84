// The timeline: items as bars in the lane of their key, what bounded the run, and how many items ended, over time.

const AXIS = 22, SPEED = 40, BAND = 14, GAP = 8; // heights in CSS pixels
const LANES_HEIGHT = 440;
const NARROWEST = 50; // milliseconds that the view shows at least

const BOUND_NAMES = ["workers", "slots", "quota", "network", "input", "disk", "cluster", "end", "unknown"];
const BOUND_TITLES = { workers: "workers", slots: "slots", quota: "quota", network: "network", input: "input", disk: "disk",
  cluster: "cluster", end: "last items", unknown: "unknown" };

class Timeline {
  constructor(data, host, open) {
    this.data = data;
    this.openItem = open;
    this.host = host;
    this.drawn = 0; // redraws, for measurements
    this.build();
    this.reload();
    new ResizeObserver(() => this.draw()).observe(this.frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.palette = null; this.draw(); });
  }

  // Read the data again: on the live page it grows.
  reload() {
    const followed = !this.view || this.view.end >= this.span;
    this.span = Math.max(this.data.lastMoment, 1);
    if (!this.view || followed) this.view = { begin: this.view && this.zoomed ? this.view.begin : 0, end: this.span };
    this.lanes = new Lanes(this.data);
    this.limited = [];
    const all = this.data.earlier;
    for (let i = 0; i < all.count; i++) if (all.trouble[i] === 1) this.limited.push(i);
    this.layOut();
    this.draw();
  }

  get zoomed() { return this.view.begin > 0 || this.view.end < this.span; }

  build() {
    const button = (text, label, act) => element("button", { type: "button", text, "aria-label": label, title: label, onclick: act });
    this.readout = element("p", { class: "readout", role: "status", "aria-live": "polite" });
    this.canvas = element("canvas", { tabindex: "0", role: "img", "aria-describedby": "timeline-help", "aria-label":
      "Timeline of the run: one lane for each key, items as bars. The table of items has the same facts." });
    this.labels = element("div", { class: "labels", "aria-hidden": "true" });
    this.tip = element("div", { class: "tip", hidden: "" });
    this.frame = element("div", { class: "frame" }, this.canvas, this.tip);
    this.host.append(
      element("div", { class: "tools" },
        button("+", "Zoom in", () => this.zoom(0.5)), button("−", "Zoom out", () => this.zoom(2)),
        button("‹", "Earlier", () => this.pan(-0.4)), button("›", "Later", () => this.pan(0.4)),
        button("Whole run", "Show the whole run", () => this.setView(0, this.span)), this.readout),
      element("div", { class: "timeline" }, this.labels, this.frame),
      this.buildLegend(),
      element("p", { id: "timeline-help", class: "help", text:
        "Drag to select a part; Ctrl and the wheel zoom; Shift and drag moves. With the keyboard: + and − zoom, arrows move, 0 shows the whole run, Enter opens the item in the middle." }));
    this.listen();
  }

  buildLegend() {
    const entry = (kind, text) => element("span", {}, element("span", { class: `swatch swatch-${kind}`, "aria-hidden": "true" }), text);
    const words = [["done", "done"], ["running", "running"], ["failed", "failed"], ["retry", "retried"],
      ["limited", "rate-limited"], ["interrupted", "interrupted"], ["cooling", "key cooling down"], ["dead", "key parked or dead"]];
    return element("p", { class: "legend" }, ...words.map(([kind, text]) => entry(kind, text)), entry("mark", "▼ 429"));
  }

  layOut() {
    const rows = this.lanes.rowCount, gaps = this.lanes.lanes.length;
    this.rowHeight = Math.max(2, Math.min(16, Math.floor((LANES_HEIGHT - gaps * GAP) / Math.max(1, rows))));
    let top = AXIS + SPEED + BAND + 2 * GAP;
    this.labels.replaceChildren(this.buildLabel("items ended", AXIS, SPEED), this.buildLabel("bound by", AXIS + SPEED + GAP, BAND));
    for (const lane of this.lanes.lanes) {
      lane.top = top;
      lane.height = Math.max(lane.rows * this.rowHeight, 12);
      this.labels.append(this.buildLabel(lane.name, top, lane.height));
      top += lane.height + GAP;
    }
    if (this.lanes.hidden) {
      this.labels.append(this.buildLabel(`${this.lanes.hidden} keys with fewer items are not drawn`, top, 14));
      top += 14 + GAP;
    }
    this.height = top;
    this.canvas.style.height = this.labels.style.height = `${top}px`;
  }

  buildLabel(text, top, height) {
    const label = foreign(text, "div");
    label.title = text;
    label.style.top = `${top}px`;
    label.style.height = label.style.lineHeight = `${Math.min(height, 16)}px`;
    return label;
  }

  // -- looking and moving -----------------------------------------------------------------------------------

  setView(begin, end) {
    const length = Math.min(this.span, Math.max(NARROWEST, end - begin));
    const from = Math.min(Math.max(0, begin), this.span - length);
    this.view = { begin: Math.max(0, from), end: from + length };
    this.draw();
    this.readout.textContent = this.describeView();
  }

  describeView() {
    const { begin, end } = this.view;
    return `${formatClock(this.data.began + begin)} to ${formatClock(this.data.began + end)} (${formatDuration(end - begin)})`;
  }

  zoom(factor, around = 0.5) {
    const { begin, end } = this.view, length = (end - begin) * factor;
    const fixed = begin + (end - begin) * around;
    this.setView(fixed - length * around, fixed + length * (1 - around));
  }

  pan(share) {
    const { begin, end } = this.view, by = (end - begin) * share;
    this.setView(begin + by, end + by);
  }

  momentAt(x) { return this.view.begin + (x / this.frame.clientWidth) * (this.view.end - this.view.begin); }

  listen() {
    const { canvas } = this;
    let drag = null;
    canvas.addEventListener("wheel", (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!event.ctrlKey && !event.metaKey && !sideways) return;
      event.preventDefault();
      if (sideways) this.pan(event.deltaX / 600);
      else this.zoom(Math.exp(event.deltaY / 240), event.offsetX / this.frame.clientWidth);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, y: event.offsetY, pan: event.shiftKey || event.button === 1, view: { ...this.view }, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) { this.hover(event.offsetX, event.offsetY); return; }
      if (Math.abs(event.offsetX - drag.x) > 3) drag.moved = true;
      if (!drag.moved) return;
      this.tip.hidden = true;
      if (drag.pan) {
        const by = ((drag.x - event.offsetX) / this.frame.clientWidth) * (drag.view.end - drag.view.begin);
        this.setView(drag.view.begin + by, drag.view.end + by);
      } else {
        this.selected = [Math.min(drag.x, event.offsetX), Math.max(drag.x, event.offsetX)];
        this.draw();
      }
    });
    canvas.addEventListener("pointerup", (event) => {
      const ended = drag;
      drag = null;
      const selected = this.selected;
      this.selected = null;
      if (!ended) return;
      if (selected && selected[1] - selected[0] > 3) this.setView(this.momentAt(selected[0]), this.momentAt(selected[1]));
      else if (!ended.moved) this.click(event.offsetX, event.offsetY);
    });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("dblclick", (event) => this.zoom(0.4, event.offsetX / this.frame.clientWidth));
    canvas.addEventListener("keydown", (event) => {
      const act = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), ArrowLeft: () => this.pan(-0.2),
        ArrowRight: () => this.pan(0.2), 0: () => this.setView(0, this.span), Enter: () => this.openMiddle() }[event.key];
      if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
    });
  }

  find(x, y) {
    const lane = this.lanes.lanes.find((each) => y >= each.top && y < each.top + each.height);
    if (!lane) return { lane: null, bar: -1 };
    const row = lane.first + Math.min(lane.rows - 1, Math.floor((y - lane.top) / this.rowHeight));
    const tolerance = (3 * (this.view.end - this.view.begin)) / this.frame.clientWidth;
    return { lane, bar: this.lanes.barAt(row, this.momentAt(x), tolerance) };
  }

  hover(x, y) {
    const { lane, bar } = this.find(x, y), moment = this.momentAt(x);
    const lines = bar >= 0 ? this.describeBar(bar) : lane ? this.describeLane(lane, moment) : this.describeMoment(moment, y);
    this.tip.replaceChildren(...lines.map((line) => foreign(line, "div")));
    this.tip.hidden = false;
    const left = Math.min(x + 14, this.frame.clientWidth - this.tip.offsetWidth - 4);
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${y + 16}px`;
    this.canvas.style.cursor = bar >= 0 ? "pointer" : "crosshair";
  }

  describeBar(bar) {
    const { data, lanes } = this, row = lanes.item[bar];
    const kind = Object.keys(BAR).find((name) => BAR[name] === lanes.kind[bar]);
    const start = data.began + lanes.start[bar];
    const lines = [row === NO_ITEM ? "an item without a state" : data.idOf(row),
      `${kind === "limited" ? "rate-limited" : kind}, ${formatClock(start)}, ${formatDuration(lanes.end[bar] - lanes.start[bar])}`];
    if (row !== NO_ITEM && data.cause[row] && kind === "failed") lines.push(data.causeOf(row));
    return lines;
  }

  describeLane(lane, moment) {
    const lines = [`${lane.name}, ${formatClock(this.data.began + moment)}`];
    for (const period of lane.periods) {
      if (period.since <= moment && moment < period.until) lines.push(`${period.state}: ${period.why}`);
    }
    return lines;
  }

  describeMoment(moment) {
    const lines = [`${formatDay(this.data.began + moment)} ${formatClock(this.data.began + moment)}`];
    const period = this.data.header.bounds.find(([since, until]) => since <= moment && moment < until);
    if (period) {
      const parts = BOUND_NAMES.filter((name) => period[2][name]).map((name) => BOUND_TITLES[name]);
      lines.push(`bound by ${parts.join(", ") || "nothing known"}; ${period[4].toFixed(1)} of ${period[3]} workers busy`);
    }
    return lines;
  }

  click(x, y) {
    const { bar } = this.find(x, y);
    if (bar >= 0 && this.lanes.item[bar] !== NO_ITEM) this.openItem(this.lanes.item[bar]);
  }

  openMiddle() {
    const middle = (this.view.begin + this.view.end) / 2;
    for (let row = 0; row < this.lanes.rowCount; row++) {
      const bar = this.lanes.barAt(row, middle, (this.view.end - this.view.begin) / 2);
      if (bar >= 0 && this.lanes.item[bar] !== NO_ITEM) { this.openItem(this.lanes.item[bar]); return; }
    }
  }

  // -- drawing ----------------------------------------------------------------------------------------------

  draw() {
    const width = this.frame.clientWidth;
    if (!width || !this.lanes) return;
    const scale = Math.min(2, window.devicePixelRatio || 1);
    const wide = Math.round(width * scale), high = Math.round(this.height * scale);
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.width = wide;
      this.canvas.height = high;
      this.image = null;
    }
    const context = this.canvas.getContext("2d");
    this.palette = this.palette || readPalette(this.canvas);
    if (!this.image) {
      this.image = context.createImageData(wide, high);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.column = new Uint8Array(wide);
    }
    this.pixels.fill(0);
    for (const lane of this.lanes.lanes) this.paintLane(lane, wide, scale);
    context.putImageData(this.image, 0, 0);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    this.drawSpeed(context, width);
    this.drawBand(context, width);
    this.drawMarks(context, width);
    this.drawAxis(context, width);
    if (this.selected) {
      context.fillStyle = this.palette.text;
      context.globalAlpha = 0.15;
      context.fillRect(this.selected[0], 0, this.selected[1] - this.selected[0], this.height);
      context.globalAlpha = 1;
    }
    this.drawn++;
  }

  paintLane(lane, wide, scale) {
    const { pixels, column, palette, lanes } = this;
    const { begin, end } = this.view, perMs = wide / (end - begin);
    const top = Math.round(lane.top * scale), bottom = Math.round((lane.top + lane.height) * scale);
    for (let y = top; y < bottom; y++) pixels.fill(palette.lane, y * wide, (y + 1) * wide);
    for (const period of lane.periods) {
      const from = Math.max(0, Math.floor((period.since - begin) * perMs)), to = Math.min(wide, Math.ceil((period.until - begin) * perMs));
      const cooling = period.state === "cooling" || period.state === "limited";
      for (let y = top; y < bottom; y++) {
        for (let x = from; x < to; x++) {
          const hatched = cooling ? (x + y) % 7 < 2 : (x + y) % 5 === 0 || (x - y + 5000) % 5 === 0;
          pixels[y * wide + x] = hatched ? (cooling ? palette.cooling : palette.dead) : (cooling ? palette.coolingGround : palette.deadGround);
        }
      }
    }
    for (let each = 0; each < lane.rows; each++) {
      column.fill(0);
      const row = lane.first + each, until = lanes.rowStarts[row + 1];
      for (let place = lanes.firstAfter(row, begin); place < until; place++) {
        const bar = lanes.bars[place], start = lanes.start[bar];
        if (start > end) break;
        const from = Math.max(0, Math.floor((start - begin) * perMs));
        let to = Math.min(wide, Math.floor((lanes.end[bar] - begin) * perMs));
        if (to - from > 3 && to < wide) to -= 1; // a gap between two bars
        else if (to <= from) to = Math.min(wide, from + 1);
        const kind = lanes.kind[bar];
        for (let x = from; x < to; x++) if (column[x] < kind) column[x] = kind;
      }
      const rowTop = top + Math.round(each * this.rowHeight * scale);
      const thick = Math.max(1, Math.round(this.rowHeight * scale) - (this.rowHeight >= 4 ? Math.round(scale) : 0));
      for (let y = rowTop; y < rowTop + thick; y++) {
        const line = y * wide;
        for (let x = 0; x < wide; x++) {
          const kind = column[x];
          if (kind) pixels[line + x] = palette.bar(kind, x, y);
        }
      }
    }
  }

  drawSpeed(context, width) {
    const { data, view, palette } = this, bin = 3, bins = Math.ceil(width / bin);
    const counts = new Uint32Array(bins), perMs = width / (view.end - view.begin) / bin;
    for (let row = 0; row < data.count; row++) {
      if (data.state[row] !== 2 && data.state[row] !== 3) continue;
      const place = Math.floor((data.ended[row] - view.begin) * perMs);
      if (place >= 0 && place < bins && data.attempts[row]) counts[place]++;
    }
    let most = 1;
    for (const count of counts) if (count > most) most = count;
    context.fillStyle = palette.speed;
    for (let place = 0; place < bins; place++) {
      const height = (counts[place] / most) * (SPEED - 4);
      if (height) context.fillRect(place * bin, AXIS + SPEED - height, bin - 0.5, height);
    }
  }

  drawBand(context, width) {
    const top = AXIS + SPEED + GAP, { palette } = this;
    context.fillStyle = palette.ground;
    context.fillRect(0, top, width, BAND);
    for (const [since, until, by] of this.data.header.bounds) {
      const from = Math.floor(this.toX(since, width)), to = Math.ceil(this.toX(until, width)); // no seams
      if (to < 0 || from > width) continue;
      const total = Object.values(by).reduce((sum, each) => sum + each, 0) || 1;
      let y = top;
      for (const name of BOUND_NAMES) {
        if (!by[name]) continue;
        const height = (by[name] / total) * BAND;
        context.fillStyle = palette.bound[name];
        context.fillRect(from, y, Math.max(0.7, to - from), height);
        y += height;
      }
    }
    this.drawBandWords(context, width, top);
  }

  // Words in the band where one bound lasts long enough: never by colour alone.
  drawBandWords(context, width, top) {
    let run = null;
    const flush = () => {
      if (!run) return;
      const from = Math.max(0, run.from), to = Math.min(width, run.to), word = BOUND_TITLES[run.name];
      context.font = "10px system-ui, sans-serif";
      if (to - from > context.measureText(word).width + 10) {
        context.fillStyle = this.palette.bandText;
        context.textBaseline = "middle";
        context.fillText(word, from + 5, top + BAND / 2 + 0.5);
      }
      run = null;
    };
    for (const [since, until, by] of this.data.header.bounds) {
      const total = Object.values(by).reduce((sum, each) => sum + each, 0);
      const name = BOUND_NAMES.find((each) => (by[each] || 0) >= 0.6 * total) || null;
      const from = this.toX(since, width), to = this.toX(until, width);
      if (run && run.name === name && from - run.to < 3) run.to = to;
      else { flush(); run = name ? { name, from, to } : null; }
    }
    flush();
  }

  // 429s as marks above the lanes of their keys, one for each pixel.
  drawMarks(context, width) {
    const all = this.data.earlier;
    context.fillStyle = this.palette.mark;
    const laneOf = new Map(this.lanes.lanes.map((lane) => [lane.number, lane]));
    const last = new Map();
    for (const i of this.limited) {
      const lane = laneOf.get(all.key[i]), x = Math.round(this.toX(all.ended[i], width));
      if (!lane || x < 0 || x > width || last.get(lane) === x) continue;
      last.set(lane, x);
      context.beginPath();
      context.moveTo(x - 3.5, lane.top - 6);
      context.lineTo(x + 3.5, lane.top - 6);
      context.lineTo(x, lane.top);
      context.fill();
    }
  }

  drawAxis(context, width) {
    const { begin, end } = this.view, { began } = this.data, { palette } = this;
    const step = niceStep((end - begin) / Math.max(2, width / 110));
    const offset = new Date(began).getTimezoneOffset() * 60000;
    let at = Math.ceil((began + begin - offset) / step) * step + offset - began;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    for (; at <= end; at += step) {
      const x = this.toX(at, width);
      context.fillStyle = palette.grid;
      context.fillRect(Math.round(x), 0, 1, AXIS + SPEED);
      context.globalAlpha = 0.3; // over the bars
      context.fillRect(Math.round(x), AXIS + SPEED, 1, this.height);
      context.globalAlpha = 1;
      context.fillStyle = palette.quiet;
      const moment = began + at;
      let text = step < 1000 ? `${formatClock(moment)}.${Math.floor(new Date(moment).getMilliseconds() / 100)}` : formatClock(moment, step < 60000);
      if (step >= 43200000 || (formatClock(moment) === "00:00:00" && step >= 60000)) text = formatDay(moment).slice(5);
      if (x + 4 + context.measureText(text).width < width) context.fillText(text, x + 4, 4);
    }
  }

  toX(moment, width) { return ((moment - this.view.begin) / (this.view.end - this.view.begin)) * width; }
}

function niceStep(wanted) {
  const steps = [100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5];
  return steps.find((each) => each >= wanted) || Math.ceil(wanted / 864e5) * 864e5;
}

// Colours of the style sheet, as canvas and image data need them.
function readPalette(canvas) {
  const style = getComputedStyle(canvas), read = (name) => style.getPropertyValue(`--${name}`).trim();
  const word = (name) => {
    const hex = read(name).slice(1), part = (at) => parseInt(hex.slice(at, at + 2), 16);
    return ((255 << 24) | (part(4) << 16) | (part(2) << 8) | part(0)) >>> 0;
  };
  const solid = [0, word("done"), word("running"), word("interrupted"), word("retry"), word("limited"), word("failed")];
  const second = [0, word("done"), word("running-2"), word("lane"), word("lane"), word("lane"), word("failed-2")];
  // Patterns besides colours: failed has stripes, running diagonals, attempts without a result are hollow.
  const bar = (kind, x, y) => {
    if (kind === BAR.done) return solid[kind];
    if (kind === BAR.failed) return x % 4 === 3 ? second[kind] : solid[kind];
    if (kind === BAR.running) return (x + y) % 6 < 2 ? second[kind] : solid[kind];
    if (kind === BAR.interrupted) return (x + y) % 2 ? second[kind] : solid[kind];
    return y % 3 === 2 ? second[kind] : solid[kind];
  };
  const bound = {};
  for (const name of BOUND_NAMES) bound[name] = read(`bound-${name}`);
  return { lane: word("lane"), cooling: word("cooling"), coolingGround: word("cooling-ground"), dead: word("dead"),
    deadGround: word("dead-ground"), bar, bound, text: read("text"), quiet: read("quiet"), grid: read("grid"),
    ground: read("lane"), speed: read("speed"), mark: read("limited-mark"), bandText: read("band-text") };
}

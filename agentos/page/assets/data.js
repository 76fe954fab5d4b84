// The data of the page: unpacks the block that packing.py writes, and gives access to items and attempts.

const STATES = ["pending", "running", "done", "failed", "interrupted", "parked"];
const ENDS = ["done", "failed", "retry", "limited", "interrupted", "running"];
const TROUBLES = ["", "rate-limited", "key rejected", "no answer"];
const NO_ITEM = 0xffffffff;
const OTHER_CAUSE = 0xffff;

function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function unpackBlock(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const end = bytes.length - 4;
  const length = new DataView(bytes.buffer).getUint32(end, true);
  const decoder = new TextDecoder();
  const header = JSON.parse(decoder.decode(bytes.subarray(end - length, end)));
  const parts = {};
  let place = 0;
  for (const part of header.parts) {
    const piece = bytes.subarray(place, place + part.bytes);
    place += part.bytes;
    parts[part.name] = part.type === "text" ? decoder.decode(piece) : joinPlanes(part, piece);
  }
  return { header, parts };
}

function joinPlanes(part, piece) {
  const count = part.count;
  if (part.type === "u8") return piece.slice();
  const values = part.type === "u16" ? new Uint16Array(count) : new Uint32Array(count);
  const planes = part.type === "u16" ? 2 : 4;
  for (let plane = 0; plane < planes; plane++) {
    const begin = plane * count, shift = 8 * plane;
    for (let i = 0; i < count; i++) values[i] |= piece[begin + i] << shift;
  }
  if (part.delta) for (let i = 1; i < count; i++) values[i] += values[i - 1];
  return values;
}

// A column that can grow, for the live page.
function grown(column, size) {
  if (column.length >= size) return column;
  const larger = new column.constructor(Math.max(size, 2 * column.length, 256));
  larger.set(column);
  return larger;
}

const ITEM_COLUMNS = ["state", "key", "attempts", "ended", "duration", "tokens", "cause"];
const EARLIER_COLUMNS = ["item", "kind", "number", "key", "ended", "duration", "trouble", "text"];

class RunData {
  constructor({ header, parts }) {
    this.header = header;
    this.keys = header.keys;
    this.began = header.began; // epoch milliseconds; all times of items are relative to it
    this.count = parts.state.length;
    for (const name of ITEM_COLUMNS) this[name] = parts[name];
    this.earlier = { count: parts["earlier.item"].length };
    for (const name of EARLIER_COLUMNS) this.earlier[name] = parts["earlier." + name];
    this.errorTexts = header.error_texts;
    this.previews = toMap(header.texts.previews);
    this.errors = toMap(header.texts.errors);
    this.logs = toMap(header.texts.logs);
    this.idText = parts.ids;
    this.idStarts = new Uint32Array(this.count + 1);
    for (let i = 0, place = 0; i < this.count; i++) {
      this.idStarts[i] = place;
      place = this.idText.indexOf("\n", place) + 1;
      this.idStarts[i + 1] = place;
    }
    this.packed = this.count; // rows whose ids are in idText; later ones are in newIds
    this.newIds = [];
    this.rowsById = null;
    this.lowered = null;
    this.version = 0;
  }

  idOf(row) {
    if (row >= this.packed) return this.newIds[row - this.packed];
    return unescapeId(this.idText.slice(this.idStarts[row], this.idStarts[row + 1] - 1));
  }

  // Milliseconds at which the last known thing happened: the end of bars of running items.
  get lastMoment() { return Math.max(1, this.header.last); }

  // The rows whose id, preview, error, cause or key contains the text; null: all.
  search(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    const hits = new Uint8Array(this.count);
    if (this.lowered === null) this.lowered = this.idText.toLowerCase();
    const same = this.lowered.length === this.idText.length; // else case changed a length, and places do not fit
    if (same && !wanted.includes("\n")) {
      let row = 0;
      for (let at = this.lowered.indexOf(wanted); at >= 0; at = this.lowered.indexOf(wanted, this.idStarts[row + 1])) {
        row = this.rowAt(at, row);
        hits[row] = 1;
        if (row + 1 >= this.packed) break;
      }
    }
    for (let row = same ? this.packed : 0; row < this.count; row++) {
      if (this.idOf(row).toLowerCase().includes(wanted)) hits[row] = 1;
    }
    for (const [row, texts] of this.previews) {
      if (texts[0].toLowerCase().includes(wanted) || texts[1].toLowerCase().includes(wanted)) hits[row] = 1;
    }
    for (const [row, error] of this.errors) if (error.toLowerCase().includes(wanted)) hits[row] = 1;
    const keys = this.keys.map((name) => name !== "" && name.toLowerCase().includes(wanted));
    const causes = this.header.head.failures.map((each) => each[1].toLowerCase().includes(wanted));
    if (keys.includes(true) || causes.includes(true)) {
      for (let row = 0; row < this.count; row++) {
        if (keys[this.key[row]] || causes[this.cause[row] - 1]) hits[row] = 1;
      }
    }
    return hits;
  }

  // The row of the id that contains the character at this place of idText.
  rowAt(place, low) {
    let high = this.packed;
    while (high - low > 1) {
      const middle = (low + high) >>> 1;
      if (this.idStarts[middle] <= place) low = middle; else high = middle;
    }
    return low;
  }

  causeOf(row) {
    const cause = this.cause[row];
    if (cause === 0) return "";
    const known = this.header.head.failures[cause - 1];
    return known ? known[1] : (this.errors.get(row) || "another cause").split("\n")[0];
  }

  // The earlier attempts of an item, the oldest first.
  earlierOf(row) {
    const found = [], all = this.earlier;
    for (let i = 0; i < all.count; i++) if (all.item[i] === row) found.push(i);
    return found;
  }

  find(id) {
    if (this.rowsById === null) {
      this.rowsById = new Map();
      for (let row = 0; row < this.count; row++) this.rowsById.set(this.idOf(row), row);
    }
    return this.rowsById.get(id);
  }

  keyNumber(name) {
    let number = this.keys.indexOf(name || "");
    if (number < 0) number = this.keys.push(name) - 1;
    return number;
  }

  // The number of a text in errorTexts, which columns of 16 bits hold; 0 beyond their room.
  errorNumber(text) {
    let number = text ? this.errorTexts.indexOf(text) : 0;
    if (number < 0) number = this.errorTexts.length < 5000 ? this.errorTexts.push(text) - 1 : 0;
    return number;
  }

  // The live page: put an item's newest state; [id, state, key, attempts, ended, duration, tokens, cause].
  put(id, facts) {
    let row = this.find(id);
    if (row === undefined) {
      row = this.count++;
      for (const name of ITEM_COLUMNS) this[name] = grown(this[name], this.count);
      this.newIds.push(id);
      this.rowsById.set(id, row);
    }
    ITEM_COLUMNS.forEach((name, place) => { this[name][row] = facts[place]; });
    this.version++;
    return row;
  }

  putEarlier(row, facts) {
    const place = this.earlier.count++;
    for (const name of EARLIER_COLUMNS) this.earlier[name] = grown(this.earlier[name], this.earlier.count);
    this.earlier.item[place] = row;
    EARLIER_COLUMNS.slice(1).forEach((name, i) => { this.earlier[name][place] = facts[i]; });
  }

  countStates() {
    const counts = new Array(STATES.length).fill(0);
    for (let row = 0; row < this.count; row++) counts[this.state[row]]++;
    return counts;
  }
}

function toMap([rows, texts]) {
  return new Map(rows.map((row, place) => [row, texts[place]]));
}

function unescapeId(line) {
  return line.includes("\\") ? line.replace(/\\(n|\\)/g, (_, mark) => (mark === "n" ? "\n" : "\\")) : line;
}

// The order that sorts unsigned 32-bit numbers: stable, and far quicker than a comparison at a million.
function sortedOrder(values, count) {
  let order = new Uint32Array(count), next = new Uint32Array(count);
  for (let i = 0; i < count; i++) order[i] = i;
  for (const shift of [0, 16]) {
    const places = new Uint32Array(65537);
    for (let i = 0; i < count; i++) places[((values[i] >>> shift) & 0xffff) + 1]++;
    for (let i = 0; i < 65536; i++) places[i + 1] += places[i];
    for (let i = 0; i < count; i++) {
      const row = order[i];
      next[places[(values[row] >>> shift) & 0xffff]++] = row;
    }
    [order, next] = [next, order];
  }
  return order;
}

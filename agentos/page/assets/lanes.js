// Lanes of the timeline: one for each key, with as many rows as items used it at once.

const MOST_LANES = 60;
const MOST_ROWS = 64; // of one lane; what runs beyond them at the same time is drawn over

// Kinds of bars, the more important drawn last where several share a pixel.
const BAR = { done: 1, running: 2, interrupted: 3, retry: 4, limited: 5, failed: 6 };
const BAR_OF_END = [BAR.done, BAR.failed, BAR.retry, BAR.limited, BAR.interrupted, BAR.running];

class Lanes {
  constructor(data) {
    this.data = data;
    this.collect();
    this.pack();
  }

  // All attempts as bars. The last attempt of an item that waits or was interrupted is among the earlier ones.
  collect() {
    const { data } = this, earlier = data.earlier, most = data.count + earlier.count;
    this.start = new Uint32Array(most);
    this.end = new Uint32Array(most);
    this.kind = new Uint8Array(most);
    this.item = new Uint32Array(most);
    const key = new Uint16Array(most);
    const running = STATES.indexOf("running"), done = STATES.indexOf("done"), failed = STATES.indexOf("failed");
    let count = 0;
    for (let row = 0; row < data.count; row++) {
      const state = data.state[row];
      if (data.attempts[row] === 0 || (state !== done && state !== failed && state !== running)) continue;
      const ended = data.ended[row];
      this.start[count] = state === running ? ended : Math.max(0, ended - data.duration[row]);
      this.end[count] = state === running ? Math.max(ended + 1, data.lastMoment) : ended;
      this.kind[count] = state === done ? BAR.done : state === failed ? BAR.failed : BAR.running;
      this.item[count] = row;
      key[count++] = data.key[row];
    }
    for (let i = 0; i < earlier.count; i++) {
      this.start[count] = Math.max(0, earlier.ended[i] - earlier.duration[i]);
      this.end[count] = earlier.ended[i];
      this.kind[count] = earlier.trouble[i] === 1 ? BAR.limited : BAR_OF_END[earlier.kind[i]];
      this.item[count] = earlier.item[i];
      key[count++] = earlier.key[i];
    }
    this.count = count;
    this.key = key;
  }

  // Put each bar into the first row of its lane that is free.
  pack() {
    const { data, count, start, end, key } = this;
    const order = sortedOrder(start, count);
    const used = new Uint32Array(data.keys.length);
    for (let i = 0; i < count; i++) used[key[i]]++;
    const named = data.keys.map((name, number) => ({ name: name || "no key", number, used: used[number] }));
    const wanted = named.filter((lane) => lane.used > 0 || data.header.periods.some((each) => each[0] === lane.name));
    this.hidden = Math.max(0, wanted.length - MOST_LANES);
    const shown = wanted.sort((a, b) => b.used - a.used).slice(0, MOST_LANES)
      .sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
    this.lanes = shown.map((lane) => ({ ...lane, free: [], first: 0, rows: 1, periods: [] }));
    const laneOf = new Int16Array(data.keys.length).fill(-1);
    this.lanes.forEach((lane, place) => { laneOf[lane.number] = place; });
    const row = new Uint8Array(count);
    for (let i = 0; i < count; i++) {
      const bar = order[i], place = laneOf[key[bar]];
      if (place < 0) continue;
      const { free } = this.lanes[place], begin = start[bar];
      let found = 0;
      while (found < free.length && free[found] > begin + 2) found++; // times are rounded
      if (found === free.length && found === MOST_ROWS) {
        found = 0;
        for (let each = 1; each < MOST_ROWS; each++) if (free[each] < free[found]) found = each;
      }
      free[found] = end[bar];
      row[bar] = found;
    }
    let rows = 0;
    for (const lane of this.lanes) {
      lane.first = rows;
      lane.rows = Math.max(1, lane.free.length);
      rows += lane.rows;
    }
    this.rowCount = rows;
    // Bars by row, in order of time.
    this.rowStarts = new Uint32Array(rows + 1);
    for (let bar = 0; bar < count; bar++) {
      const place = laneOf[key[bar]];
      if (place >= 0) this.rowStarts[this.lanes[place].first + row[bar] + 1]++;
    }
    for (let each = 0; each < rows; each++) this.rowStarts[each + 1] += this.rowStarts[each];
    const next = this.rowStarts.slice();
    this.bars = new Uint32Array(this.rowStarts[rows] || 0);
    for (let i = 0; i < count; i++) {
      const bar = order[i], place = laneOf[key[bar]];
      if (place >= 0) this.bars[next[this.lanes[place].first + row[bar]]++] = bar;
    }
    for (const [name, state, since, until, why] of data.header.periods) {
      const lane = this.lanes.find((each) => each.name === name);
      if (lane) lane.periods.push({ state, since, until, why });
    }
  }

  // The place in this.bars of the first bar of a row that ends after the moment.
  firstAfter(row, moment) {
    let low = this.rowStarts[row], high = this.rowStarts[row + 1];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.end[this.bars[middle]] < moment) low = middle + 1; else high = middle;
    }
    return low;
  }

  // The bar of a row at the moment, or the nearest within the tolerance; -1: none.
  barAt(row, moment, tolerance) {
    let best = -1, distance = tolerance;
    for (let place = this.firstAfter(row, moment - tolerance); place < this.rowStarts[row + 1]; place++) {
      const bar = this.bars[place];
      if (this.start[bar] > moment + tolerance) break;
      const off = Math.max(0, this.start[bar] - moment, moment - this.end[bar]);
      if (off <= distance) { best = bar; distance = off; }
    }
    return best;
  }
}

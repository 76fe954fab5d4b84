// The table of items: search, filter, sort, pages. A real table, which keyboards and screen readers can use.

const PAGE_LENGTH = 50;
const TABLE_COLUMNS = [
  { name: "id", title: "Item" },
  { name: "state", title: "State", sortable: true },
  { name: "preview", title: "Input" },
  { name: "result", title: "Result" },
  { name: "key", title: "Key", sortable: true },
  { name: "attempts", title: "Attempts", sortable: true, right: true },
  { name: "ended", title: "Ended", sortable: true, right: true },
  { name: "duration", title: "Duration", sortable: true, right: true },
  { name: "tokens", title: "Tokens", sortable: true, right: true },
];

class ItemTable {
  constructor(data, host, open) {
    this.data = data;
    this.open = open;
    this.sort = { name: null, descending: false };
    this.filter = { text: "", state: "", key: "", cause: 0 };
    this.page = 0;
    this.rows = new Uint32Array(0);
    this.build(host);
    this.update();
  }

  build(host) {
    const changed = () => { this.page = 0; this.update(); };
    this.searchBox = element("input", { type: "search", id: "search", placeholder: "Search ids, texts, errors",
      autocomplete: "off", spellcheck: "false", oninput: () => { this.filter.text = this.searchBox.value; changed(); } });
    this.stateBox = element("select", { id: "filter-state",
      onchange: () => { this.filter.state = this.stateBox.value; changed(); } });
    this.keyBox = element("select", { id: "filter-key",
      onchange: () => { this.filter.key = this.keyBox.value; changed(); } });
    this.causeBox = element("select", { id: "filter-cause",
      onchange: () => { this.filter.cause = Number(this.causeBox.value); changed(); } });
    this.clearButton = element("button", { type: "button", text: "Clear", onclick: () => this.clear() });
    this.fillBoxes();
    this.summary = element("p", { class: "summary", role: "status", "aria-live": "polite" });
    this.head = element("tr");
    for (const column of TABLE_COLUMNS) this.head.append(this.buildHeading(column));
    this.body = element("tbody");
    const table = element("table", { class: "items" },
      element("caption", { class: "unseen", text: "Items of the run" }), element("thead", {}, this.head), this.body);
    this.before = element("button", { type: "button", text: "‹ Previous", onclick: () => this.turn(-1) });
    this.after = element("button", { type: "button", text: "Next ›", onclick: () => this.turn(1) });
    this.place = element("span", { class: "place" });
    host.append(
      element("div", { class: "tools", role: "search" },
        labelled("Search", this.searchBox), labelled("State", this.stateBox), labelled("Key", this.keyBox),
        labelled("Cause", this.causeBox), this.clearButton),
      this.summary,
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of items" }, table),
      element("div", { class: "pager" }, this.before, this.place, this.after));
  }

  fillBoxes() {
    const { data } = this;
    fillSelect(this.stateBox, [["", "all"], ...STATES.map((name) => [name, name])]);
    fillSelect(this.keyBox, [["", "all"], ...data.keys.map((name, number) => [String(number), name || "no key"])
      .filter(([number]) => number !== "0" || data.keys.length === 1)]);
    fillSelect(this.causeBox, [["0", "all"],
      ...data.header.head.failures.map((each, place) => [String(place + 1), `${formatNumber(each[0])} × ${each[1]}`])]);
  }

  buildHeading(column) {
    const heading = element("th", { scope: "col", class: column.right ? "right" : "" });
    if (column.sortable) {
      heading.append(element("button", { type: "button", text: column.title, onclick: () => this.sortBy(column.name) }));
    } else heading.textContent = column.title;
    heading.dataset.column = column.name;
    return heading;
  }

  sortBy(name) {
    const same = this.sort.name === name;
    this.sort = same && this.sort.descending ? { name: null, descending: false } : { name, descending: same };
    this.page = 0;
    this.update();
  }

  turn(by) { this.page += by; this.show(); }

  clear() {
    this.filter = { text: "", state: "", key: "", cause: 0 };
    this.searchBox.value = ""; this.stateBox.value = ""; this.keyBox.value = ""; this.causeBox.value = "0";
    this.page = 0;
    this.update();
  }

  showCause(number) {
    this.clear();
    this.filter.cause = number;
    this.causeBox.value = String(number);
    this.update();
  }

  // Find the rows that fit, in order.
  update() {
    const { data, filter } = this;
    const hits = data.search(filter.text);
    const state = filter.state === "" ? -1 : STATES.indexOf(filter.state);
    const key = filter.key === "" ? -1 : Number(filter.key);
    const found = new Uint32Array(data.count);
    let count = 0;
    for (let row = 0; row < data.count; row++) {
      if (hits !== null && !hits[row]) continue;
      if (state >= 0 && data.state[row] !== state) continue;
      if (key >= 0 && data.key[row] !== key) continue;
      if (filter.cause && data.cause[row] !== filter.cause) continue;
      found[count++] = row;
    }
    this.rows = this.ordered(found.subarray(0, count));
    this.show();
  }

  ordered(rows) {
    const { name, descending } = this.sort;
    if (name === null) return this.failedFirst(rows);
    const column = this.data[name], values = new Uint32Array(rows.length);
    for (let i = 0; i < rows.length; i++) values[i] = column[rows[i]];
    const order = sortedOrder(values, rows.length);
    const sorted = order.map((place) => rows[place]);
    return descending ? sorted.reverse() : sorted;
  }

  // Without a wish: what failed, then what runs, then the others as they ended.
  failedFirst(rows) {
    const rank = [2, 1, 3, 0, 2, 2], values = new Uint32Array(rows.length);
    for (let i = 0; i < rows.length; i++) values[i] = rank[this.data.state[rows[i]]];
    return sortedOrder(values, rows.length).map((place) => rows[place]);
  }

  show() {
    const pages = Math.max(1, Math.ceil(this.rows.length / PAGE_LENGTH));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const begin = this.page * PAGE_LENGTH;
    const shown = this.rows.subarray(begin, begin + PAGE_LENGTH);
    this.body.replaceChildren(...Array.from(shown, (row) => this.buildRow(row)));
    const all = this.data.count;
    this.summary.textContent = this.rows.length === all
      ? `${formatNumber(all)} items` : `${formatNumber(this.rows.length)} of ${formatNumber(all)} items`;
    this.place.textContent = `page ${formatNumber(this.page + 1)} of ${formatNumber(pages)}`;
    this.before.disabled = this.page === 0;
    this.after.disabled = this.page >= pages - 1;
    for (const heading of this.head.children) {
      const sorted = heading.dataset.column === this.sort.name;
      if (sorted) heading.setAttribute("aria-sort", this.sort.descending ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    }
  }

  buildRow(row) {
    const { data } = this;
    const state = STATES[data.state[row]];
    const [input, value] = data.previews.get(row) || ["", ""];
    const result = data.cause[row] ? data.causeOf(row) : value;
    const begun = data.attempts[row] > 0;
    const cells = [
      element("td", {}, element("button", { type: "button", class: "link", onclick: () => this.open(row) },
        foreign(data.idOf(row)))),
      element("td", {}, stateLabel(state)),
      element("td", { class: "text" }, foreign(input)),
      element("td", { class: data.cause[row] ? "text bad" : "text" }, foreign(result)),
      element("td", {}, foreign(data.keys[data.key[row]] || "")),
      element("td", { class: "right", text: begun ? String(data.attempts[row]) : "" }),
      element("td", { class: "right", text: begun && state !== "running" ? formatClock(data.began + data.ended[row]) : "" }),
      element("td", { class: "right", text: begun && state !== "running" ? formatDuration(data.duration[row]) : "" }),
      element("td", { class: "right", text: data.tokens[row] ? formatNumber(data.tokens[row]) : "" }),
    ];
    return element("tr", {}, ...cells);
  }
}

function labelled(text, control) {
  return element("label", { for: control.id }, element("span", { text }), control);
}

function fillSelect(select, options) {
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => element("option", { value, text: printable(text).slice(0, 90) })));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

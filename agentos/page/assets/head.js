// The head of the live page, from the facts that the report has as static text: see html_page.py.

function buildHead(head) {
  const top = element("div", { class: "top-inner" },
    element("div", { class: "title" }, element("h1", {}, foreign(head.name)), " ",
      element("span", { class: `badge badge-${head.word.replaceAll(" ", "-")}`, text: head.state })),
    element("p", { class: "when", text: head.when }));
  if (head.command) top.append(element("p", {}, element("code", { text: printable(head.command) })));
  if (head.damage) {
    top.append(element("p", { class: "alert", role: "alert", text:
      `The journal is damaged: ${printable(head.damage)}. This page covers only the intact entries before the damage.` }));
  }
  top.append(element("dl", { class: "cards" }, ...head.cards.map(buildCard)));
  if (head.bound_note) top.append(element("p", { text: `What bounded the speed: ${head.bound_note}` }));
  top.append(...head.notes.map((note) => element("p", {}, foreign(note))));
  return top;
}

function buildCard([label, value, note, tone]) {
  return element("div", { class: tone ? `card tone-${tone}` : "card" }, element("dt", { text: label }),
    element("dd", {}, element("div", { class: "value", text: value }), element("div", { class: "note", text: note })));
}

function buildSmallTable(table) {
  const cell = (tag, text, place) => element(tag, { class: table.right.includes(place) ? "right" : "",
    scope: tag === "th" ? "col" : null }, foreign(text));
  return element("div", { class: "scroll", tabindex: "0" }, element("table", {},
    element("thead", {}, element("tr", {}, ...table.columns.map((text, place) => cell("th", text, place)))),
    element("tbody", {}, ...table.rows.map((row) => element("tr", {}, ...row.map((text, place) => cell("td", text, place)))))));
}

function buildSpeed(head) {
  if (!head.bounds.rows.length) return [element("p", { text: "Nothing has been recorded about it yet." })];
  return [
    element("p", { class: "quiet", text: "What bounded the run, second by second. Lost: by how much it would have been shorter, had no worker been idle for this reason." }),
    element("div", { class: "two" }, buildSmallTable(head.bounds),
      head.quota_keys.rows.length ? buildSmallTable(head.quota_keys) : element("div"))];
}

function buildFailures(head, showFailed) {
  if (!head.failures.length) return [element("p", { text: "No item has failed." })];
  return head.failures.map(([count, cause, place, example, detail]) => {
    const more = element("div", { class: "failure-more" }, place ? `${printable(place)} · ` : "", "e.g. ", foreign(example));
    if (detail && detail !== cause) {
      more.append(element("details", {}, element("summary", { text: "Details of one" }),
        element("pre", { tabindex: "0", text: printable(detail) })));
    }
    return element("div", { class: "failure" },
      element("div", { class: "failure-head" }, element("span", { class: "count", text: formatNumber(count) }),
        element("span", { class: "cause" }, foreign(cause)),
        element("button", { type: "button", text: "Show failed items", onclick: showFailed })), more);
  });
}

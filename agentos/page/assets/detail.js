// One item: its attempts, previews, error and the end of its log, in a dialog.

class ItemDetail {
  constructor(data, fetchMore = null) {
    this.data = data;
    this.fetchMore = fetchMore; // the live page asks the server for the log and the whole texts
    this.title = element("h2", { id: "detail-title" });
    this.content = element("div");
    this.dialog = element("dialog", { "aria-labelledby": "detail-title" },
      element("div", { class: "detail-head" }, this.title,
        element("button", { type: "button", class: "close", "aria-label": "Close", text: "✕", onclick: () => this.dialog.close() })),
      this.content);
    this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.dialog.close(); });
    this.dialog.addEventListener("close", () => { this.row = null; if (this.stopFollowing) this.stopFollowing(); });
    document.body.append(this.dialog);
    this.row = null;
    this.stopFollowing = null;
  }

  show(row) {
    const { data } = this;
    this.row = row;
    if (this.stopFollowing) { this.stopFollowing(); this.stopFollowing = null; }
    this.title.replaceChildren(foreign(data.idOf(row)));
    const state = STATES[data.state[row]];
    const facts = element("p", { class: "facts" }, stateLabel(state));
    const told = [data.attempts[row] > 0 ? `${data.attempts[row]} attempt${data.attempts[row] === 1 ? "" : "s"}` : "not begun"];
    if (data.tokens[row]) told.push(`${formatNumber(data.tokens[row])} tokens`);
    facts.append(` · ${told.join(" · ")}`);
    this.content.replaceChildren(facts, ...this.buildTexts(row), this.buildAttempts(row), ...this.buildLog(row));
    if (!this.dialog.open) this.dialog.showModal();
    if (this.fetchMore) this.stopFollowing = this.fetchMore(row, this.content);
  }

  buildTexts(row) {
    const { data } = this, parts = [];
    const [input, value] = data.previews.get(row) || ["", ""];
    if (input) parts.push(block("Input, its beginning", input));
    if (value) parts.push(block("Result, its beginning", value));
    const cause = data.header.head.failures[data.cause[row] - 1];
    const error = data.errors.get(row) || (cause ? cause[1] : "");
    if (error) parts.push(block("Error", error, "bad"));
    if (cause && cause[4] && cause[4] !== error) {
      parts.push(element("details", {},
        element("summary", { text: cause[3] === data.idOf(row) ? "Traceback" : "Traceback of another item with this cause" }),
        element("pre", { text: printable(cause[4]), tabindex: "0" })));
    }
    return parts;
  }

  buildAttempts(row) {
    const { data } = this, all = data.earlier;
    const body = element("tbody");
    const add = (number, end, key, ended, duration, why) => body.append(element("tr", {},
      element("td", { class: "right", text: String(number) }), element("td", { text: end }),
      element("td", {}, foreign(data.keys[key] || "–")),
      element("td", { class: "right", text: formatClock(data.began + ended - duration) }),
      element("td", { class: "right", text: end === "running" ? "" : formatDuration(duration) }),
      element("td", { class: "text" }, foreign(why))));
    for (const i of data.earlierOf(row)) {
      const why = data.errorTexts[all.text[i]] || TROUBLES[all.trouble[i]];
      add(all.number[i], endWord(all.kind[i], all.trouble[i]), all.key[i], all.ended[i], all.duration[i], why);
    }
    const state = STATES[data.state[row]];
    if (data.attempts[row] > 0 && ["done", "failed", "running"].includes(state)) {
      add(data.attempts[row], state, data.key[row], data.ended[row], data.duration[row], data.causeOf(row));
    }
    if (!body.children.length) return element("p", { text: "It has no attempts." });
    const head = ["Attempt", "Ended", "Key", "Started", "Duration", "Why"];
    return element("table", { class: "attempts" }, element("caption", { text: "Attempts" }),
      element("thead", {}, element("tr", {}, ...head.map((text, place) =>
        element("th", { scope: "col", text, class: [0, 3, 4].includes(place) ? "right" : "" })))), body);
  }

  buildLog(row) {
    const log = this.data.logs.get(row);
    return log ? [element("h3", { text: "The end of its log" }), element("pre", { text: printable(log), tabindex: "0", dir: "auto" })] : [];
  }
}

function endWord(kind, trouble) {
  return trouble === 1 ? "rate-limited" : trouble === 2 ? "rejected" : trouble === 3 ? "no answer" : ENDS[kind];
}

function block(title, text, tone = "") {
  return element("div", { class: `block ${tone}` }, element("h3", { text: title }),
    element("pre", { text: printable(text), dir: "auto", tabindex: "0" }));
}

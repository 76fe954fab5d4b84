// The live page: asks the server with the token of the address, shows the runs, and follows one by its stream.

const TOKEN_KEY = "agentos-token";
const MOST_PREVIEWS = 20000; // kept in memory; the dialog of an item asks for its texts

function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(TOKEN_KEY, given);
    history.replaceState(null, "", location.pathname + location.search); // out of the address bar at once
  }
  return sessionStorage.getItem(TOKEN_KEY) || "";
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { "x-agentos-token": sessionStorage.getItem(TOKEN_KEY) || "" } });
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Error(told.error || `the server answered ${answer.status}`);
  }
  return answer;
}

function runPath(name, what) { return `/api/runs/${encodeURIComponent(name)}/${what}`; }

// Server-sent events by fetch, because EventSource cannot send a header. Calls back with each event; ends with the stream.
async function readStream(path, signal, onEvent) {
  const reader = (await ask(path, { signal })).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const fields = {};
      for (const line of text.slice(0, end).split("\n")) {
        const colon = line.indexOf(": ");
        fields[line.slice(0, colon)] = line.slice(colon + 2);
      }
      text = text.slice(end + 2);
      onEvent(fields.event, fields.data);
    }
  }
}

class LivePage {
  constructor(host) {
    this.host = host;
    this.following = null;
    this.tellPlace = element("p", { class: "when", role: "status" });
  }

  async showRuns() {
    this.stop();
    const { runs, chosen } = await (await ask("/api/runs")).json();
    if (chosen && !this.choseOnce) { this.choseOnce = true; await this.showRun(chosen); return; }
    const row = (run) => element("tr", {},
      element("td", {}, element("button", { type: "button", class: "link", onclick: () => this.open(run.name) }, foreign(run.name))),
      element("td", { text: run.problem ? "unreadable" : run.state.text }),
      element("td", { class: "right", text: formatNumber(run.done) }), element("td", { class: "right", text: formatNumber(run.failed) }),
      element("td", { class: "right", text: run.left === null ? "" : formatNumber(run.left) }),
      element("td", { text: run.started_at ? `${formatDay(run.started_at * 1000)} ${formatClock(run.started_at * 1000)}` : "" }));
    const heads = [["Run"], ["State"], ["Done", 1], ["Failed", 1], ["Left", 1], ["Started"]];
    document.title = "agentos: runs";
    this.host.replaceChildren(
      element("header", { class: "top" }, element("div", { class: "top-inner" }, element("h1", { text: "Runs" }))),
      element("main", {}, element("section", {}, runs.length ? element("div", { class: "scroll", tabindex: "0" },
        element("table", { class: "runs" }, element("caption", { class: "unseen", text: "All runs of this folder" }),
          element("thead", {}, element("tr", {}, ...heads.map(([text, right]) => element("th", { scope: "col", text, class: right ? "right" : "" })))),
          element("tbody", {}, ...runs.map(row)))) : element("p", { text: "There are no runs yet." }))));
    document.documentElement.dataset.ready = "runs";
  }

  open(name) {
    history.pushState({ run: name }, "");
    this.showRun(name).catch(showLiveProblem);
  }

  async showRun(name) {
    this.stop();
    document.title = `${name}: agentos`;
    this.host.replaceChildren(element("main", {}, element("p", { role: "status", text: "Reading the run …" })));
    const packed = new Uint8Array(await (await ask(runPath(name, "data"))).arrayBuffer());
    const data = new RunData(await unpackBlock(packed));
    document.querySelector("dialog")?.remove();
    this.name = name;
    this.data = data;
    this.buildRun(data.header.head);
    this.page = buildPage(data, (row, content) => this.follow(row, content));
    this.stream(name, data);
  }

  buildRun(head) {
    const section = (id, title, ...content) => element("section", { id }, element("h2", { text: title }), ...content);
    this.head = element("header", { class: "top" });
    this.speed = element("div");
    this.failures = element("div");
    this.keys = element("div");
    this.sessions = element("div");
    const links = [["timeline", "Timeline"], ["speed", "Why not faster"], ["failures", "Failures"], ["keys", "Keys"], ["items", "Items"], ["sessions", "Sessions"]];
    this.host.replaceChildren(this.head,
      element("nav", { "aria-label": "Sections" }, element("div", { class: "inner" },
        element("a", { href: "#", text: "‹ All runs", onclick: (event) => { event.preventDefault(); history.pushState({}, ""); this.choseOnce = true; this.showRuns().catch(showLiveProblem); } }),
        ...links.map(([id, text]) => element("a", { href: `#${id}`, text })))),
      element("main", {},
        section("timeline", "Timeline", element("div", { id: "timeline-host" })),
        section("speed", "Why is it not faster?", this.speed),
        section("failures", "Failures by cause", this.failures),
        section("keys", "Keys", this.keys),
        section("items", "Items", element("div", { id: "items-host" })),
        section("sessions", "Sessions", this.sessions)));
    this.showHead(head);
  }

  showHead(head) {
    this.newest = head;
    this.head.replaceChildren(buildHead(head));
    this.head.querySelector(".when").after(this.tellPlace);
    if (this.data) this.updateCards();
    this.speed.replaceChildren(...buildSpeed(head));
    this.failures.replaceChildren(...buildFailures(head, () => {
      const { table } = this.page;
      table.clear();
      table.filter.state = table.stateBox.value = "failed";
      table.update();
      document.getElementById("items").scrollIntoView();
    }));
    this.keys.replaceChildren(head.keys.rows.length ? buildSmallTable(head.keys) : element("p", { text: "The run uses no keys." }));
    this.sessions.replaceChildren(buildSmallTable(head.sessions));
  }

  // Between two heads, which cost a read of the whole journal, the counts come from the items themselves.
  updateCards() {
    const [pending, running, done, failed, interrupted, parked] = this.data.countStates();
    const shown = { Done: done, Failed: failed, Left: pending + running + interrupted + parked };
    for (const card of this.head.querySelectorAll(".card")) {
      const label = card.querySelector("dt").textContent;
      if (label in shown && (label !== "Left" || this.data.header.report.total !== null)) {
        card.querySelector(".value").textContent = formatNumber(shown[label]);
      }
    }
  }

  stop() {
    if (this.following) this.following.abort();
    this.following = null;
  }

  async stream(name, data) {
    const following = this.following = new AbortController();
    let last = data.header.last_entry, pause = 500;
    while (!following.signal.aborted) {
      try {
        this.tellPlace.textContent = "live";
        await readStream(`${runPath(name, "events")}?after=${last}&journal=${data.header.journal}`, following.signal, (event, text) => {
          pause = 500;
          if (event === "items") last = this.takeItems(JSON.parse(text));
          else if (event === "head") this.takeHead(JSON.parse(text));
          else if (event === "reset") { this.stop(); this.showRun(name).catch(showLiveProblem); }
        });
      } catch (error) {
        if (following.signal.aborted) return;
        this.tellPlace.textContent = `not live: ${error.message || "the server does not answer"}; trying again`;
      }
      await new Promise((resolve) => { setTimeout(resolve, pause); });
      pause = Math.min(10000, 2 * pause);
    }
  }

  takeItems({ last, items, attempts }) {
    const { data } = this;
    for (const [id, state, key, number, ended, duration, tokens, cause, input, value, error] of items) {
      const row = data.put(id, [state, data.keyNumber(key), number, ended, duration, tokens, cause]);
      if ((input || value) && (data.previews.size < MOST_PREVIEWS || error)) data.previews.set(row, [input, value]);
      if (error) data.errors.set(row, error); else data.errors.delete(row);
      data.header.last = Math.max(data.header.last, ended);
    }
    for (const [id, kind, number, key, ended, duration, trouble, text] of attempts) {
      const row = data.find(id);
      data.putEarlier(row === undefined ? NO_ITEM : row, [kind, number, data.keyNumber(key), ended, duration, trouble, data.errorNumber(text)]);
    }
    if (items.length) this.redrawSoon();
    return last;
  }

  takeHead({ head, word, periods, bounds, last }) {
    Object.assign(this.data.header, { periods, bounds, last: Math.max(last, word === "running" ? this.data.header.last : 0) });
    for (const period of periods) this.data.keyNumber(period[0]);
    this.data.header.report.state.word = word;
    this.showHead(head);
    this.redrawSoon();
  }

  // At most four times a second, and less often where a redraw takes long.
  redrawSoon() {
    if (this.redraw) return;
    this.redraw = setTimeout(() => {
      this.redraw = null;
      const began = performance.now();
      this.updateCards();
      const { table, timeline } = this.page;
      if (document.activeElement === document.body || !table.body.contains(document.activeElement)) table.update();
      timeline.reload();
      document.documentElement.dataset.items = String(this.data.count);
      this.redrawPause = Math.max(250, 5 * (performance.now() - began));
    }, this.redrawPause || 250);
  }

  // The whole texts and the log of an item in its dialog, followed while it runs. Returns how to stop.
  follow(row, content) {
    const id = encodeURIComponent(this.data.idOf(row)), stop = new AbortController();
    const log = element("pre", { tabindex: "0", dir: "auto", class: "log" });
    const show = async () => {
      const facts = await (await ask(`${runPath(this.name, "item")}?id=${id}`, { signal: stop.signal })).json();
      content.append(...[["Input", facts.input], ["Result", facts.value], ["Error", facts.error], ["Traceback", facts.traceback]]
        .filter(([, text]) => text).map(([title, text]) => block(title, text)));
      for (let from = null, shown = false; !stop.signal.aborted;) {
        const part = await (await ask(`${runPath(this.name, "log")}?id=${id}${from === null ? "" : `&from=${from}`}`, { signal: stop.signal })).json();
        from = part.next;
        if (part.text) {
          if (!shown) content.append(element("h3", { text: "Log" }), log);
          shown = true;
          log.textContent += printable(part.text);
          log.scrollTop = log.scrollHeight;
        }
        if (STATES[this.data.state[row]] !== "running" && !part.text) return;
        await new Promise((resolve) => { setTimeout(resolve, 700); });
      }
    };
    show().catch((error) => { if (!stop.signal.aborted) content.append(element("p", { class: "bad", text: error.message })); });
    return () => stop.abort();
  }
}

async function startLive() {
  document.getElementById("no-script").hidden = true;
  const page = new LivePage(document.getElementById("live"));
  window.agentosLive = page; // for measurements and tests
  takeToken();
  addEventListener("popstate", (event) => {
    page.choseOnce = true;
    (event.state && event.state.run ? page.showRun(event.state.run) : page.showRuns()).catch(showLiveProblem);
  });
  addEventListener("hashchange", () => { if (location.hash.includes("token=")) { takeToken(); location.reload(); } });
  await page.showRuns().catch(showLiveProblem);
}

function showLiveProblem(error) {
  document.getElementById("live").replaceChildren(element("main", {}, element("section", { role: "alert" },
    element("h2", { text: "The page cannot be shown" }), element("p", { text: error.message || String(error) }))));
  document.documentElement.dataset.ready = "problem";
}

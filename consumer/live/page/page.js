// Draws what the server sends. Everything from a store is text for this page, never markup: only textContent and attributes are set.
"use strict";

const byId = (id) => document.getElementById(id);
const COLORS = 8;
const MOST_EVENTS = 300;
const SPAN_MS = 900000; // that charts cover
const GAP_MS = 30000; // between two points: nothing was observed meanwhile, and no line is drawn
const [WIDE, HIGH] = [600, 80];

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function drawn(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- figures as text

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const small = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const count = (value) => (value === null ? "–" : whole.format(value));
const often = (value) => (value > 0 && value < 10 ? small.format(value) : whole.format(value));

function bytes(value) {
  if (value === null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (Math.abs(value) >= 1024 && units.length > 1) {
    value /= 1024;
    units.shift();
  }
  return `${units[0] === "B" ? value.toFixed(0) : value.toFixed(1)} ${units[0]}`;
}

function span(seconds) {
  if (seconds === null) return "–";
  if (seconds === "never") return "never";
  for (const [unit, size, most] of [["s", 1, 120], ["min", 60, 7200], ["h", 3600, 172800]]) {
    if (seconds < most) return `${Number((seconds / size).toPrecision(3))} ${unit}`;
  }
  return `${count(seconds / 86400)} days`;
}

const clock = (ms) => (ms ? new Date(ms).toISOString().slice(0, 19).replace("T", " ") : "");
const sequence = (number) => (number < 0 ? "–" : count(number)); // none yet
const rate = (flow) => (flow === null ? "–" : `${often(flow.events)} events/s`);
const rates = (flow) => (flow === null ? "" : `${often(flow.rows)} rows/s, ${bytes(flow.bytes)}/s`);

// ---- tables that keep their rows, so that what is selected stays selected

class Grid {
  constructor(columns, { sort = null, filter = false, most = 200 } = {}) {
    this.columns = columns; // [title, row -> cell or node-less text, {text, sort, cell}]
    this.sort = sort;
    this.most = most;
    this.rows = [];
    this.body = make("tbody");
    const head = make("tr");
    columns.forEach(([title, value, options = {}], i) => {
      const cell = make("th", { scope: "col", class: options.text ? "text" : "" });
      if (sort !== null && options.sort) {
        const button = make("button", { type: "button" }, title);
        button.addEventListener("click", () => {
          this.sort = i;
          this.draw();
        });
        cell.append(button);
      } else {
        cell.append(title);
      }
      head.append(cell);
    });
    this.node = make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), this.body));
    this.more = make("p", { class: "quiet" });
    this.node.append(this.more);
    this.filter = null;
    if (filter) {
      this.filter = make("input", { placeholder: "filter tables", "aria-label": "filter tables", spellcheck: "false" });
      this.filter.addEventListener("input", () => this.draw());
      this.node.prepend(this.filter);
    }
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    let rows = this.rows;
    const wanted = this.filter ? this.filter.value.toLowerCase() : "";
    if (wanted) rows = rows.filter((row) => this.columns[0][1](row).toLowerCase().includes(wanted));
    if (this.sort !== null) {
      const by = this.columns[this.sort][2].sort;
      rows = [...rows].sort((a, b) => (by(a) < by(b) ? 1 : by(a) > by(b) ? -1 : 0));
    }
    say(this.more, rows.length > this.most ? `and ${count(rows.length - this.most)} more` : "");
    rows = rows.slice(0, this.most);
    while (this.body.rows.length > rows.length) this.body.lastChild.remove();
    rows.forEach((row, i) => {
      let line = this.body.rows[i];
      if (line === undefined) {
        line = this.body.insertRow();
        for (const [, , options = {}] of this.columns) line.append(make("td", { class: options.text ? "text" : "" }));
      }
      this.columns.forEach(([, value, options = {}], k) => {
        const cell = line.cells[k];
        if (options.cell) {
          options.cell(cell, row);
        } else {
          const text = value(row);
          say(cell, text);
          if (options.text) cell.title = text;
        }
      });
    });
  }
}

// ---- one store

const stores = new Map();
const remembered = new Map(); // those that are in their homes and not in memory

function part(node, title, first, second, used) {
  if (!node.firstChild) node.append(make("span", { class: "quiet" }, title), make("b"), make("span", { class: "quiet" }));
  say(node.children[1], first);
  say(node.children[2], second);
  if (used !== undefined) {
    if (!node.children[3]) node.append(make("div", { class: "bar" }, make("i")));
    node.children[3].firstChild.style.width = `${100 * Math.min(1, used)}%`;
  }
}

class StoreCard {
  constructor(name) {
    this.name = name;
    this.health = make("p", { class: "health", role: "status" });
    this.problems = make("ul", { class: "problems" });
    this.numbers = new Map(); // of each reader in the store, which choose its color
    this.flow = make("div", { class: "flow" });
    this.nodes = ["source", "producer", "ring", "log"].map((part) => make("div", { class: "node", "data-part": part }));
    this.arrows = [0, 1, 2].map(() => make("div", { class: "arrow" }));
    this.flow.append(this.nodes[0], this.arrows[0], this.nodes[1], this.arrows[1], this.nodes[2], this.arrows[2], this.nodes[3]);
    this.ring = drawn("svg", { class: "ring", viewBox: "-70 -70 140 140", role: "img" });
    this.readers = new Grid([
      ["Reader", (r) => r.name, { text: true, cell: (cell, r) => this.nameOf(cell, r) }],
      ["Behind", (r) => `${count(r.lag_events)} events`],
      ["Waits", (r) => (r.lag_events ? span(Math.round(r.waited * 10) / 10) : "–")],
      ["State", (r) => r.state, { text: true, cell: (cell, r) => this.stateOf(cell, r) }],
      ["Events/s", (r) => (r.rate === null ? "–" : often(r.rate.events))],
      ["Caught up in", (r) => span(r.catch_up)],
      ["Bytes", (r) => bytes(r.lag_bytes)],
      ["Reads", (r) => r.source, { text: true }],
      ["Get", (r) => sequence(r.get)],
      ["Ack", (r) => sequence(r.ack)],
      ["", () => "", { cell: (cell, r) => this.buttonsOf(cell, r) }],
    ]);
    this.tables = new Grid(
      [
        ["Table", (t) => `${t.database}.${t.table}`, { text: true }],
        ["Rows/s", (t) => often(t.rate), { sort: (t) => t.rate }],
        ["Insert", (t) => often(t.rates.insert || 0), { sort: (t) => t.rates.insert || 0 }],
        ["Update", (t) => often(t.rates.update || 0), { sort: (t) => t.rates.update || 0 }],
        ["Delete", (t) => often(t.rates.delete || 0), { sort: (t) => t.rates.delete || 0 }],
        ["Snapshot", (t) => often(t.rates.read || 0), { sort: (t) => t.rates.read || 0 }],
        ["Bytes/s", (t) => bytes(t.bytes_rate), { sort: (t) => t.bytes_rate }],
        ["Rows seen", (t) => count(Object.values(t.rows).reduce((a, b) => a + b, 0)), { sort: (t) => Object.values(t.rows).reduce((a, b) => a + b, 0) }],
        ["Newest", (t) => clock(t.last_ms), { sort: (t) => t.last_ms }],
        ["Last DDL", (t) => (t.ddl_ms ? `${clock(t.ddl_ms)} ${t.sql || t.ddl.toUpperCase()}` : ""), { text: true, sort: (t) => t.ddl_ms }],
      ],
      { sort: 1, filter: true, most: 25 },
    );
    this.snapshots = new Grid([
      ["Table", (s) => s.table, { text: true }],
      ["State", (s) => s.state + (s.problem ? `: ${s.problem}` : ""), { text: true }],
      ["Rows", (s) => count(s.rows)],
      ["Of about", (s) => (s.about ? count(s.about) : "–")],
      ["Rows/s", (s) => count(s.rate)],
      ["Left", (s) => span(s.left)],
    ]);
    this.noReaders = make("p", { class: "quiet" }, "no reader has subscribed");
    this.points = [];
    this.charts = [
      new Chart("Rows a second", (point) => [["", "put", point.rows]], (value) => count(value)),
      new Chart(
        "Behind: source and readers",
        (point) => [["", "source", point.behind], ...Object.entries(point.readers).map(([name, value]) => [this.color(name), name, value])],
        (value) => span(Math.round(value * 10) / 10),
      ),
      new Chart("Size of the log", (point) => [["", "log", point.log]], bytes),
    ];
    this.snapshotPart = make("div", {}, make("h3", {}, "Snapshots"), this.snapshots.node);
    this.tablePart = make("div", {}, make("h3", {}, "Tables, since this page was opened"), this.tables.node);
    this.node = make(
      "article",
      { class: "card", "data-store": name },
      make("h2", {}, name),
      this.health,
      this.problems,
      this.flow,
      make("div", { class: "charts" }, ...this.charts.map((chart) => chart.node)),
      make("div", { class: "drawn" }, this.ring, make("div", {}, make("h3", {}, "Readers"), this.noReaders, this.readers.node)),
      this.tablePart,
      this.snapshotPart,
    );
  }

  color(reader) {
    return `c${(this.numbers.get(reader) || 0) % COLORS}`;
  }

  plot(points) {
    this.points = [...this.points, ...points].filter((point) => point.at_ms > points[points.length - 1].at_ms - SPAN_MS);
    for (const chart of this.charts) chart.draw(this.points);
  }

  nameOf(cell, reader) {
    if (cell.childNodes.length !== 2) cell.replaceChildren(make("span", {}), make("span"));
    cell.firstChild.className = `swatch ${this.color(reader.name)}`;
    say(cell.lastChild, reader.name);
    cell.title = reader.name;
  }

  stateOf(cell, reader) {
    const holds = { producer: ", holds up the producer", log: ", keeps most of the log" }[reader.holds] || "";
    const who = !reader.owner ? "" : reader.state === "reading" ? ` (pid ${reader.owner})` : reader.state === "dead" ? ` (pid ${reader.owner} died)` : "";
    say(cell, reader.state + who + holds);
    cell.className = "text" + (reader.state === "lost" || reader.holds === "producer" ? " state-bad" : reader.state === "dead" || reader.holds ? " state-warn" : "");
  }

  buttonsOf(cell, reader) {
    if (!settings.actions) {
      cell.replaceChildren();
      delete cell.dataset.buttons;
      return;
    }
    const idle = reader.state !== "reading" && !(reader.state === "paused" && reader.owner);
    const wanted = [reader.state === "paused" ? "resume" : "pause", ...(idle ? ["move", "forget"] : [])];
    if (cell.dataset.buttons !== wanted.join()) {
      cell.dataset.buttons = wanted.join();
      cell.replaceChildren(...wanted.map((name) => this.button(name, cell)));
    }
    cell.dataset.reader = reader.name;
    for (const button of cell.children) button.setAttribute("aria-label", `${button.textContent} ${reader.name}`);
  }

  button(name, cell) {
    const button = make("button", { type: "button", class: name === "forget" ? "danger" : "" }, name);
    button.addEventListener("click", () => {
      const what = { store: this.name, subscription: cell.dataset.reader };
      if (name === "forget") forget(what);
      else if (name === "move") move(what);
      else act(name, what);
    });
    return button;
  }

  show(store) {
    this.numbers = new Map(store.readers.map((reader) => [reader.name, reader.number]));
    health(this.health, store.health);
    list_problems(this.problems, store.problems.slice(1));
    part(this.nodes[0], "Source", store.source || "none yet", store.position);
    const alive = store.producer_alive ? `pid ${store.producer}` : store.producer ? `pid ${store.producer} died` : "none";
    part(this.nodes[1], "Producer", alive, store.paused ? "paused" : store.blocked > 0.01 ? `waits ${count(100 * store.blocked)} % of the time` : "");
    part(this.nodes[2], "Ring", `${count(store.ring.capacity)} events, ${bytes(store.ring.bytes)}`, `${count(100 * store.ring.used)} % used`, store.ring.used);
    const log = store.log;
    this.nodes[3].hidden = this.arrows[2].hidden = log === null;
    if (log !== null) {
      const full = log.full_in !== null ? `full in ${span(log.full_in)}` : log.reaches !== null ? `will reach ${span(log.reaches)} back` : `keeps ${span(log.keep)}`;
      part(this.nodes[3], "Log", `${bytes(log.bytes)} of ${bytes(log.size)}`, log.trouble || full, log.used);
      this.arrow(2, store.keep, `${count(log.unsynced)} not on disk yet`);
    }
    this.arrow(0, store.arrive, store.arrive.note);
    this.arrow(1, store.store, rates(store.store.rate));
    this.draw(store);
    this.noReaders.hidden = store.readers.length > 0;
    this.readers.node.hidden = store.readers.length === 0;
    this.readers.show(store.readers);
    this.tables.show(store.tables);
    this.tablePart.hidden = store.tables.length === 0;
    this.snapshotPart.hidden = store.snapshots.length === 0;
    this.snapshots.show(store.snapshots);
  }

  arrow(i, flow, note) {
    const node = this.arrows[i];
    if (!node.firstChild) node.append(make("b"), make("span"), document.createTextNode(" "), make("span"));
    say(node.children[0], rate(flow.rate));
    say(node.children[1], flow.delay === null || flow.delay < 0.05 ? "" : `${span(flow.delay)} behind`);
    say(node.children[2], note);
  }

  draw(store) {
    const at = (part, radius) => [radius * Math.sin(2 * Math.PI * part), -radius * Math.cos(2 * Math.PI * part)];
    const round = 2 * Math.PI * 50;
    const { first, held, marks } = store.ring;
    const arc = (name, from, length) => drawn("circle", { class: name, r: 50, transform: `rotate(${360 * from - 90})`, "stroke-dasharray": `${round * length} ${round}` });
    const parts = [
      drawn("title", {}, `the ring of ${store.name}: it holds ${count(held * store.ring.capacity)} of ${count(store.ring.capacity)} events`),
      drawn("circle", { class: "track", r: 50 }),
      arc("held", first, held),
    ];
    for (const mark of marks) {
      if (mark.ring === null) continue;
      const inner = { put: 40, log: 43, get: 43, ack: 43 }[mark.cursor];
      const outer = { put: 62, log: 57, get: 60, ack: 60 }[mark.cursor];
      const [x1, y1] = at(mark.ring, inner);
      const [x2, y2] = at(mark.ring, outer);
      const line = drawn("line", { class: `${mark.cursor} ${this.color(mark.reader)}`, x1, y1, x2, y2 });
      line.append(drawn("title", {}, `${mark.cursor} ${mark.reader} ${count(mark.sequence)}`));
      parts.push(line);
    }
    parts.push(drawn("text", { y: -4 }, `put ${count(store.put.sequence)}`));
    const behind = new Set(marks.filter((mark) => mark.cursor === "ack" && mark.ring === null).map((mark) => mark.reader)).size;
    parts.push(drawn("text", { y: 10 }, behind ? `${count(behind)} read the log` : "ack ━  get ┅"));
    this.ring.replaceChildren(...parts);
  }
}

// Lines over the last minutes, drawn from the points that came: `lines` makes of a point what is drawn of it, as [class, name, value].
class Chart {
  constructor(title, lines, written) {
    this.lines = lines;
    this.written = written;
    this.most = make("span", { class: "quiet" });
    this.svg = drawn("svg", { class: "chart", viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img" });
    this.node = make(
      "figure",
      {},
      make("figcaption", {}, make("b", {}, title), this.most),
      this.svg,
      make("div", { class: "quiet scale" }, make("span", {}, "15 min ago"), make("span", {}, "now")),
    );
    this.title = title;
  }

  draw(points) {
    const end = points[points.length - 1].at_ms;
    const found = new Map(); // by name: its class, and runs of [x, value] without a gap
    let most = 0;
    let before = null;
    for (const point of points) {
      const gap = before !== null && point.at_ms - before > GAP_MS;
      before = point.at_ms;
      for (const [kind, name, value] of this.lines(point)) {
        if (!found.has(name)) found.set(name, { kind, runs: [[]], last: null });
        const line = found.get(name);
        line.kind = kind;
        if (value === null) {
          line.runs.push([]);
          continue;
        }
        if (gap) line.runs.push([]);
        most = Math.max(most, value);
        line.last = value;
        line.runs[line.runs.length - 1].push([WIDE * (1 - (end - point.at_ms) / SPAN_MS), value]);
      }
    }
    this.node.hidden = ![...found.values()].some((line) => line.last !== null);
    say(this.most, `at most ${this.written(most)}`);
    const y = (value) => (HIGH - 2 - (most > 0 ? (value / most) * (HIGH - 4) : 0)).toFixed(1);
    const parts = [drawn("title", {}, `${this.title}, the last 15 minutes: at most ${this.written(most)}`)];
    for (const [name, { kind, runs, last }] of found) {
      for (const run of runs.filter((each) => each.length)) {
        if (run.length === 1) run.push([run[0][0] + 1, run[0][1]]); // one point is a dot
        const line = drawn("polyline", { class: `line ${kind}`, points: run.map(([x, value]) => `${x.toFixed(1)},${y(value)}`).join(" ") });
        line.append(drawn("title", {}, last === null ? name : `${name}: ${this.written(last)}`));
        parts.push(line);
      }
    }
    this.svg.replaceChildren(...parts);
  }
}

class RememberedCard {
  constructor(name) {
    this.health = make("p", { class: "health", role: "status" });
    this.nodes = ["home", "log"].map((of) => make("div", { class: "node", "data-part": of }));
    this.noReaders = make("p", { class: "quiet" }, "no reader has subscribed");
    this.readers = new Grid([
      ["Reader", (r) => r.name, { text: true }],
      ["Behind", (r) => `${count(r.lag_events)} events`],
      ["State", (r) => r.state, { text: true }],
      ["Ack, on disk", (r) => sequence(r.ack)],
    ]);
    const flow = make("div", { class: "flow" }, ...this.nodes);
    this.node = make("article", { class: "card", "data-store": name }, make("h2", {}, name), this.health, flow, this.noReaders, this.readers.node);
  }

  show(store) {
    health(this.health, store.health);
    const held = store.newest - store.oldest + 1;
    const events = held > 0 ? `${count(held)} events, ${count(store.oldest)} to ${count(store.newest)}` : "no events";
    part(this.nodes[0], "Home", store.home, events);
    const oldest = held > 0 ? `, oldest event ${clock(store.oldest_ms)}` : "";
    part(this.nodes[1], "Log", `${bytes(store.bytes)} of ${bytes(store.size)}`, `keeps ${span(store.keep)}${oldest}`, store.used);
    this.noReaders.hidden = store.readers.length > 0;
    this.readers.node.hidden = store.readers.length === 0;
    this.readers.show(store.readers);
  }
}

function list_problems(place, problems) {
  while (place.children.length > problems.length) place.lastChild.remove();
  problems.forEach((problem, i) => {
    if (!place.children[i]) place.append(make("li"));
    health(place.children[i], problem);
  });
}

function health(node, found) {
  node.className = `health ${found.state}`;
  const text = found.fix ? `${found.says}: ${found.fix}` : found.says;
  say(node, text);
}

function cards(place, shown, Card, wanted) {
  for (const [name, card] of shown) {
    if (!wanted.some((store) => store.name === name)) {
      card.node.remove();
      shown.delete(name);
    }
  }
  for (const store of wanted) {
    if (!shown.has(store.name)) {
      shown.set(store.name, new Card(store.name));
      place.append(shown.get(store.name).node);
    }
    shown.get(store.name).show(store);
  }
}

// What is wrong is in the card of its store, once; the head counts, and lists what has no card.
function head(host) {
  const wrong = host.stores.filter((store) => store.problems.length);
  const missing = Object.values(host.missing);
  list_problems(byId("missing"), missing.map((says) => ({ state: "bad", says, fix: "" })));
  if (!wrong.length) {
    health(byId("health"), missing.length ? { state: "bad", says: some(missing.length, "store cannot be read", "stores cannot be read"), fix: "" } : well(host));
    return;
  }
  const count_of = (store) => `${store.name}: ${some(store.problems.length, "problem", "problems")}`;
  health(byId("health"), { state: host.health.state, says: wrong.map(count_of).join(", "), fix: "" });
}

const well = (host) => (host.stores.length ? { ...host.health, says: some(host.stores.length, "store is well", "stores are well") } : host.health);
const some = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;

function show(host) {
  head(host);
  const seen = new Set();
  for (const store of host.stores) seen.add(store.name);
  cards(byId("stores"), stores, StoreCard, host.stores);
  cards(byId("remembered"), remembered, RememberedCard, host.remembered);
  for (const select of document.querySelectorAll("select[name=store]")) {
    const names = [...select.options].map((option) => option.value);
    for (const name of seen) if (!names.includes(name)) select.append(make("option", { value: name }, name));
    for (const option of [...select.options]) if (!seen.has(option.value)) option.remove();
  }
  if (!tail.source && seen.size && !tail.refused) follow();
}

// ---- events

const settings = { actions: false, values: false };
const tail = { source: null, paused: false, refused: false, passed: 0, kept: [] };

function follow() {
  if (tail.source) tail.source.close();
  const form = new FormData(byId("filter"));
  byId("events").replaceChildren();
  tail.kept = [];
  tail.passed = 0;
  tail.refused = false;
  note("");
  tail.source = new EventSource(`events?${new URLSearchParams(form)}`);
  tail.source.addEventListener("message", (message) => {
    const found = JSON.parse(message.data);
    tail.passed = found.passed;
    note(found.problem);
    if (tail.paused) {
      tail.kept = [...tail.kept, ...found.events].slice(-MOST_EVENTS);
    } else {
      list(found.events);
    }
  });
  tail.source.addEventListener("refused", (message) => {
    tail.source.close();
    tail.source = null;
    tail.refused = true;
    note(JSON.parse(message.data));
  });
}

function note(problem) {
  const masked = settings.values ? "" : "values are masked (--show-values shows them). ";
  const passed = tail.passed ? `${count(tail.passed)} events were skipped: too many to show, or removed. ` : "";
  say(byId("tail-note"), `${masked}${passed}${problem || ""}`);
}

function list(events) {
  const place = byId("events");
  const top = place.scrollTop;
  const lines = events.map(line).reverse();
  place.prepend(...lines);
  while (place.children.length > MOST_EVENTS) place.lastChild.remove();
  if (top > 0) place.scrollTop = top + lines.reduce((sum, each) => sum + each.offsetHeight, 0); // what is read stays where it is
}

function line(event) {
  const node = make("li", { title: `${event.position}, event ${event.seq}, ${event.transaction || "no transaction"}` });
  node.append(clock(event.ts_ms), " ", make("span", { class: `op ${event.op}` }, event.op), " ", make("b", {}, `${event.database || ""}.${event.table || ""}`), " ");
  if (event.sql !== undefined) node.append(make("span", {}, event.sql));
  if (event.large) node.append("too large to show");
  const before = event.before || {};
  const changed = new Set(event.changed || []);
  for (const [name, value] of Object.entries(event.after || before)) {
    node.append(make("span", { class: "name" }, name), "=");
    if (changed.has(name)) {
      if (name in before) node.append(make("span", {}, written(before[name])));
      node.append("→", make("b", {}, written(value)), " ");
    } else {
      node.append(make("span", {}, written(value)), " ");
    }
  }
  return node;
}

const written = (value) => (value === null ? "NULL" : typeof value === "string" ? value : JSON.stringify(value));

byId("filter").addEventListener("submit", (event) => {
  event.preventDefault();
  follow();
});
byId("filter").elements.store.addEventListener("change", follow);
byId("pause").addEventListener("click", () => {
  tail.paused = !tail.paused;
  byId("pause").setAttribute("aria-pressed", String(tail.paused));
  say(byId("pause"), tail.paused ? "Continue" : "Pause");
  if (!tail.paused) {
    list(tail.kept);
    tail.kept = [];
  }
});

// ---- actions

async function act(path, what) {
  const out = byId("actions-note");
  try {
    const answer = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Shmstore-Token": byId("snapshot").elements.token.value },
      body: JSON.stringify(what),
    });
    say(out, (await answer.text()).trim());
  } catch (error) {
    say(out, `not done: ${error.message}`);
  }
}

function forget({ store, subscription }) {
  const dialog = byId("sure");
  say(dialog.querySelector("p"), `Forget subscription ${subscription} of store ${store}? Its unacked events are then no longer kept, and it cannot continue.`);
  dialog.returnValue = "no";
  dialog.onclose = () => dialog.returnValue === "yes" && act("unsubscribe", { store, subscription });
  dialog.showModal();
}

function move({ store, subscription }) {
  const dialog = byId("move");
  say(dialog.querySelector("p"), `Where ${subscription} of ${store} continues: earliest, latest, an event's number, a time, FILE:OFFSET or a GTID set`);
  const { where } = dialog.querySelector("form").elements;
  dialog.returnValue = "no";
  dialog.onclose = () => dialog.returnValue === "yes" && act("seek", { store, subscription, where: where.value });
  dialog.showModal();
}

byId("snapshot").addEventListener("submit", (event) => {
  event.preventDefault();
  const { store, tables } = event.target.elements;
  act("snapshot", { store: store.value, tables: tables.value });
});
for (const name of ["pause", "resume", "reload"]) {
  byId(`producer-${name}`).addEventListener("click", () => act(name, { store: byId("snapshot").elements.store.value }));
}

// ---- the stream of figures

const figures = new EventSource("host");
figures.addEventListener("settings", (message) => {
  Object.assign(settings, JSON.parse(message.data));
  for (const card of stores.values()) card.points = []; // each connection begins with all of them
  byId("actions").hidden = !settings.actions;
  note("");
});
figures.addEventListener("message", (message) => {
  say(byId("link"), "");
  show(JSON.parse(message.data));
});
figures.addEventListener("points", (message) => {
  const points = JSON.parse(message.data);
  for (const [name, card] of stores) {
    const own = points.filter((point) => name in point.stores).map((point) => ({ ...point.stores[name], at_ms: point.at_ms }));
    if (own.length) card.plot(own);
  }
});
figures.addEventListener("error", () => say(byId("link"), "no link to shmstore web: figures are old"));

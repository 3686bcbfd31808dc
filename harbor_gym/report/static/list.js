// The list of a run's episodes: filters, search, order, and the choice of one by mouse or keyboard.

const COLUMNS = [
  ["batch", (episode) => episode.batch, (episode) => [episode.split === "test" ? "eval" : "", episode.batch || ""].join(" ").trim() || "–"],
  ["episode", (episode) => episode.number, (episode) => episode.number],
  ["task", (episode) => episode.task || "", (episode) => episode.task || "–"],
  ["reward", (episode) => episode.reward ?? -Infinity, (episode) => figure(episode.reward, 2)],
  ["turns", (episode) => episode.turns, (episode) => episode.turns],
  ["tokens", (episode) => episode.tokens ?? -1, (episode) => figure(episode.tokens, 0)],
  ["seconds", (episode) => episode.seconds ?? -1, (episode) => figure(episode.seconds, 1)],
  ["ended", (episode) => episode.end_reason || "", (episode) => episode.end_reason || "–"],
];
const NUMBERS = new Set(["reward", "turns", "tokens", "seconds"]);
const cell = (name, text) => Object.assign(element("td", NUMBERS.has(name) ? "number" : "", text), { title: text });
const COLLATOR = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : COLLATOR.compare(String(a), String(b)));

class EpisodeList {
  // `search(text)` resolves to the names of the episodes that hold a text; `choose(name)` shows one.
  constructor(search, choose) {
    this.search = search;
    this.choose = choose;
    this.episodes = [];
    this.found = null;
    this.sorted = null;
    this.descending = false;
    this.chosen = null;
    this.filters = {};
    this.build();
  }

  build() {
    const refresh = () => this.draw();
    for (const [name, label] of [["task", "task"], ["batch", "batch"], ["ended", "end reason"]]) {
      this.filters[name] = select(label, [["", `every ${label}`]], refresh);
    }
    this.filters.reward = select("reward", [["", "every reward"], ["1", "reward ≥ 1"], ["+", "reward > 0"], ["0", "reward ≤ 0"], ["-", "no reward"]], refresh);
    this.input = Object.assign(element("input", "search"), { type: "search", placeholder: "search in text (/)" });
    this.input.setAttribute("aria-label", "search in text");
    let waiting = null;
    this.input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => this.find(), 150); });
    this.count = element("p", "quiet count");
    this.count.setAttribute("role", "status");
    this.heads = new Map();
    const head = element("tr");
    for (const [name] of COLUMNS) {
      const title = element("th", NUMBERS.has(name) ? "number" : "", button(name, `sort by ${name}`, () => this.sort(name)));
      this.heads.set(name, title);
      head.append(title);
    }
    this.body = element("tbody");
    const table = element("table", "list", element("thead", "", head), this.body);
    const filters = element("div", "filters", this.input, this.filters.reward, this.filters.ended, this.filters.task, this.filters.batch);
    this.node = element("div", "scroll", filters, this.count, table);
  }

  // Take the run's episodes; those that were there keep the choice and the filters.
  update(episodes) {
    this.episodes = episodes;
    this.addChoices("task", episodes.map((episode) => episode.task).filter(Boolean));
    this.addChoices("batch", episodes.map((episode) => COLUMNS[0][2](episode)));
    this.addChoices("ended", episodes.map((episode) => episode.end_reason).filter(Boolean));
    this.draw();
    if (this.input.value) this.find();
  }

  titleOf(name) {
    return this.episodes.find((episode) => episode.name === name).title;
  }

  addChoices(name, values) {
    const box = this.filters[name];
    const known = new Set([...box.options].map((option) => option.value));
    for (const value of [...new Set(values)].sort(COLLATOR.compare)) {
      if (!known.has(value)) box.append(Object.assign(element("option", "", value), { value }));
    }
  }

  async find() {
    const text = this.input.value;
    const found = text ? new Set(await this.search(text)) : null;
    if (text !== this.input.value) return;
    this.found = found;
    this.draw();
  }

  sort(name) {
    this.descending = this.sorted === name ? !this.descending : NUMBERS.has(name);
    this.sorted = name;
    for (const [other, title] of this.heads) title.setAttribute("aria-sort", other !== name ? "none" : this.descending ? "descending" : "ascending");
    this.draw();
  }

  isShown(episode) {
    const { task, batch, ended, reward } = this.filters;
    const rewards = { "": true, 1: episode.reward >= 1, "+": episode.reward > 0, 0: typeof episode.reward === "number" && episode.reward <= 0, "-": typeof episode.reward !== "number" };
    return (!task.value || episode.task === task.value) && (!batch.value || COLUMNS[0][2](episode) === batch.value)
      && (!ended.value || episode.end_reason === ended.value) && rewards[reward.value] && (!this.found || this.found.has(episode.name));
  }

  draw() {
    const rows = this.episodes.filter((episode) => this.isShown(episode));
    if (this.sorted) {
      const key = COLUMNS.find(([name]) => name === this.sorted)[1];
      rows.sort((a, b) => compare(key(a), key(b)) * (this.descending ? -1 : 1));
    }
    this.rows = rows;
    this.count.textContent = `${rows.length} of ${this.episodes.length} episodes`;
    this.body.replaceChildren(...rows.map((episode) => this.row(episode)));
  }

  row(episode) {
    const made = element("tr", outcome(episode), ...COLUMNS.map(([name, , text]) => cell(name, text(episode))));
    made.tabIndex = episode.name === this.chosen ? 0 : -1;
    made.dataset.name = episode.name;
    made.setAttribute("aria-selected", String(episode.name === this.chosen));
    made.classList.toggle("chosen", episode.name === this.chosen);
    made.addEventListener("click", () => this.pick(episode.name));
    return made;
  }

  pick(name) {
    this.chosen = name;
    for (const row of this.body.rows) {
      const isChosen = row.dataset.name === name;
      row.classList.toggle("chosen", isChosen);
      row.setAttribute("aria-selected", String(isChosen));
      row.tabIndex = isChosen ? 0 : -1;
      if (isChosen) row.scrollIntoView({ block: "nearest" });
    }
    this.choose(name);
  }

  // Choose the next episode of those shown, or the one before; the first or last where none is chosen.
  move(by) {
    if (!this.rows.length) return;
    const at = this.rows.findIndex((episode) => episode.name === this.chosen);
    const next = at < 0 ? (by > 0 ? 0 : this.rows.length - 1) : Math.min(Math.max(at + by, 0), this.rows.length - 1);
    this.pick(this.rows[next].name);
  }
}

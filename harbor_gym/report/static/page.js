// The page: one run or several side by side, from the data in it or from the server that it came from.

const data = JSON.parse(document.getElementById("run").textContent);
const POLL_MS = 1000;
const HEAD_MS = 5000; // Between two readings of tables and charts.
const KEYS = [["j or ↓", "next episode"], ["k or ↑", "episode before"], ["n and p", "next turn, turn before"], ["space", "play or stop"], ["/", "search"], ["Tab", "to the other run"], ["d", "dark or light"], ["?", "this list"]];

class EmbeddedRun {
  constructor(run) {
    this.files = run.files;
    // A file lies somewhere beside its run: the run's own path is found from there, wherever both were moved.
    this.place = run.files && location.protocol === "file:" ? decodeURIComponent(new URL(`${run.files}/..`, location.href).pathname).replace(/\/$/, "") : run.place;
    this.list = run.list;
    this.known = run.episodes;
    this.unread = 0;
  }
  async episodes() { return { whole: true, episodes: this.list }; }
  async episode(name) { return this.known[name]; }
  async search(text) {
    const wanted = text.toLowerCase();
    const texts = (episode) => [episode.name, episode.final_observation, episode.error, episode.verifier && episode.verifier.output, ...episode.turns.flatMap((turn) => [turn.observation, turn.action, turn.parse_error])];
    const holds = (name) => texts(this.known[name]).some((part) => typeof part === "string" && part.toLowerCase().includes(wanted));
    return { searched: Object.fromEntries(this.list.map(({ name }) => [name, holds(name)])), after: 0, left: 0 };
  }
}

class LiveRun {
  constructor(run, number) { this.files = run.files; this.place = run.place; this.base = `api/runs/${number}`; this.revision = ""; this.unread = run.unread; }
  async ask(path) {
    const answer = await fetch(`${this.base}/${path}`);
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.json();
  }
  // Resolves to the episodes that are new or have changed; to null where none is.
  async episodes() {
    const found = await this.ask(`episodes?since=${this.revision}`);
    this.unread = found.unread;
    if (found.revision === this.revision) return null;
    this.revision = found.revision;
    return found;
  }
  episode(name) { return this.ask(`episode?name=${encodeURIComponent(name)}`); }
  search(text, after) { return this.ask(`search?text=${encodeURIComponent(text)}&after=${after}`); }
}

class Pane {
  // `remember(name)` notes the chosen episode in the page's address; `address(name)` is the one that opens it.
  constructor(source, place, remember, address) {
    this.source = source;
    this.remember = remember;
    this.player = null;
    this.turn = -1;
    this.list = new EpisodeList((text, after) => source.search(text, after), (name) => this.show(name), address);
    this.detail = element("section", "detail", element("p", "quiet", "There are no transcripts of episodes here."));
    this.detail.tabIndex = -1;
    this.node = element("section", "pane", this.list.node, this.detail);
    this.node.addEventListener("focusin", () => { Pane.active = this; });
    this.node.addEventListener("pointerdown", () => { Pane.active = this; });
    place.append(this.node);
  }

  async show(name) {
    this.remember(name);
    const episode = await this.source.episode(name);
    if (name !== this.list.chosen) return;
    if (this.player) this.player.stop();
    this.turn = -1;
    this.player = showEpisode(this.detail, episode, this.list.titleOf(name), this.source.files, this.source.place);
  }

  // Resolves to whether there is something new.
  async refresh(wanted) {
    const found = await this.source.episodes();
    if (found === null) {
      this.list.goOn(false);
      return false;
    }
    this.list.update(found.episodes, found.whole, this.source.unread);
    if (this.list.chosen === null && this.list.known.has(wanted)) this.open(wanted);
    else if (this.list.chosen === null && this.list.rows.length && !(wanted && this.source.unread)) this.list.pick(this.list.rows[0].name, false);
    return true;
  }

  open(name) { if (this.list.known.has(name) && name !== this.list.chosen) this.list.pick(name); }

  moveTurn(by) {
    const turns = [...this.detail.querySelectorAll("article.turn .turn-number")];
    if (!turns.length) return;
    this.turn = Math.min(Math.max(this.turn + by, 0), turns.length - 1);
    if (this.player) this.player.jump(this.turn);
    turns[this.turn].focus({ preventScroll: true });
    turns[this.turn].closest("article").scrollIntoView({ block: "nearest" });
  }
}

function listen(panes, help) {
  document.addEventListener("keydown", (event) => {
    const inField = event.target.closest && event.target.closest("input, select, textarea, dialog");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (inField) {
      if (event.key === "Escape" && event.target.type === "search") event.target.blur();
      return;
    }
    const pane = Pane.active || panes[0];
    const acts = {
      j: () => pane.list.move(1), ArrowDown: () => pane.list.move(1), k: () => pane.list.move(-1), ArrowUp: () => pane.list.move(-1),
      n: () => pane.moveTurn(1), p: () => pane.moveTurn(-1), d: switchTheme, "?": () => help.showModal(), "/": () => pane.list.input.focus(),
      " ": () => { if (pane.player && event.target.tagName !== "BUTTON" && event.target.tagName !== "SUMMARY") pane.player.toggle(); else return false; return true; },
      Tab: () => { if (panes.length < 2 || event.target !== document.body) return false; Pane.active = panes[(panes.indexOf(pane) + (event.shiftKey ? panes.length - 1 : 1)) % panes.length]; Pane.active.detail.focus(); return true; },
    };
    if (Object.hasOwn(acts, event.key) && acts[event.key]() !== false) event.preventDefault();
  });
}

// Take the tables and charts of the page as the server has it now.
async function refreshHead() {
  const page = new DOMParser().parseFromString(await (await fetch("./")).text(), "text/html");
  for (const before of document.querySelectorAll(".live")) {
    const after = page.getElementById(before.id);
    if (after && !before.isEqualNode(after)) before.replaceChildren(...after.childNodes);
  }
}

async function open() {
  openTheme();
  const help = document.getElementById("help");
  for (const [key, meaning] of KEYS) help.querySelector("dl").append(element("dt", "", key), element("dd", "", meaning));
  document.getElementById("keys").addEventListener("click", () => help.showModal());
  const place = document.getElementById("episodes");
  const read = () => decodeURIComponent(location.hash.slice(1)).split("|");
  const wanted = read();
  const address = (number) => (name) => `#${encodeURIComponent("|".repeat(number) + name)}`;
  const remember = (number) => (name) => { wanted[number] = name; history.replaceState(null, "", `#${encodeURIComponent(wanted.join("|"))}`); };
  const panes = data.runs.map((run, number) => {
    const source = data.live ? new LiveRun(run, number) : new EmbeddedRun(run);
    const pane = new Pane(source, place, remember(number), address(number));
    if (data.runs.length > 1) pane.node.prepend(element("h2", `run-name run${number}`, run.name));
    return pane;
  });
  place.classList.toggle("beside", panes.length > 1);
  Pane.active = panes[0];
  listen(panes, help);
  window.addEventListener("hashchange", () => read().forEach((name, number) => { if (name && panes[number]) panes[number].open(name); }));
  document.addEventListener("click", (event) => {
    const link = event.target.closest("header ~ details a");
    if (!link) return;
    if (link.dataset.task) for (const pane of panes) pane.list.filter("task", link.dataset.task);
    place.scrollIntoView();
  });
  const isReading = () => panes.some((pane) => pane.source.unread);
  let headAt = Date.now(), isNew = false, wasReading = isReading();
  const refresh = async () => {
    try {
      isNew = (await Promise.all(panes.map((pane, number) => pane.refresh(wanted[number])))).includes(true) || isNew;
      const isDue = isNew && data.live && (Date.now() - headAt > HEAD_MS || (wasReading && !isReading()));
      wasReading = isReading();
      if (isDue) { [headAt, isNew] = [Date.now(), false]; await refreshHead(); }
      document.body.classList.toggle("lost", false);
    } catch { document.body.classList.toggle("lost", true); }
    if (data.live) setTimeout(refresh, wasReading ? 0 : POLL_MS);
  };
  await refresh();
}

open();

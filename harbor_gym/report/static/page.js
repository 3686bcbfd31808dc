// The page: one run or two side by side, from the data in it or from the server that it came from.

const data = JSON.parse(document.getElementById("run").textContent);
const POLL_MS = 1000;
const KEYS = [["j or ↓", "next episode"], ["k or ↑", "episode before"], ["n and p", "next turn, turn before"], ["space", "play or stop"], ["/", "search"], ["Tab", "to the other run"], ["d", "dark or light"], ["?", "this list"]];

class EmbeddedRun {
  constructor(run) { this.files = run.files; this.place = run.place; this.list = run.list; this.known = run.episodes; }
  async episodes() { return this.list; }
  async episode(name) { return this.known[name]; }
  async search(text) {
    const wanted = text.toLowerCase();
    const texts = (episode) => [episode.name, episode.final_observation, episode.error, episode.verifier && episode.verifier.output, ...episode.turns.flatMap((turn) => [turn.observation, turn.action, turn.parse_error])];
    return this.list.map((episode) => episode.name).filter((name) => texts(this.known[name]).some((part) => typeof part === "string" && part.toLowerCase().includes(wanted)));
  }
}

class LiveRun {
  constructor(run, number) { this.files = run.files; this.place = run.place; this.base = `api/runs/${number}`; this.revision = null; }
  async ask(path) {
    const answer = await fetch(`${this.base}/${path}`);
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.json();
  }
  // Resolves to null where nothing is new.
  async episodes() {
    const found = await this.ask(`episodes?since=${encodeURIComponent(this.revision ?? "")}`);
    if (found.revision === this.revision) return null;
    this.revision = found.revision;
    return found.episodes;
  }
  episode(name) { return this.ask(`episode?name=${encodeURIComponent(name)}`); }
  search(text) { return this.ask(`search?text=${encodeURIComponent(text)}`); }
}

class Pane {
  constructor(source, place, remember) {
    this.source = source;
    this.remember = remember;
    this.player = null;
    this.turn = -1;
    this.list = new EpisodeList((text) => source.search(text), (name) => this.show(name));
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

  async refresh(wanted) {
    const episodes = await this.source.episodes();
    if (episodes === null) return;
    this.list.update(episodes);
    for (const picture of document.querySelectorAll("img.curve")) picture.src = picture.src.replace(/&v=.*$/, "") + `&v=${encodeURIComponent(this.source.revision)}`;
    if (this.list.chosen === null && episodes.length) this.list.pick(episodes.some((episode) => episode.name === wanted) ? wanted : this.list.rows[0].name);
  }

  moveTurn(by) {
    const turns = [...this.detail.querySelectorAll("article.turn .turn-number")];
    if (!turns.length) return;
    this.turn = Math.min(Math.max(this.turn + by, 0), turns.length - 1);
    if (this.player) this.player.jump(this.turn);
    turns[this.turn].focus({ preventScroll: true });
    turns[this.turn].closest("article").scrollIntoView({ block: "nearest" });
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "light" : "dark";
}

function firstTheme() {
  try { if (localStorage.getItem("harbor-gym-theme")) return localStorage.getItem("harbor-gym-theme"); } catch { /* likewise */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function switchTheme() {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  try { localStorage.setItem("harbor-gym-theme", document.documentElement.dataset.theme); } catch { /* a page from a file may not */ }
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

async function open() {
  setTheme(firstTheme());
  const help = document.getElementById("help");
  for (const [key, meaning] of KEYS) help.querySelector("dl").append(element("dt", "", key), element("dd", "", meaning));
  document.getElementById("theme").addEventListener("click", switchTheme);
  document.getElementById("keys").addEventListener("click", () => help.showModal());
  const place = document.getElementById("episodes");
  const wanted = decodeURIComponent(location.hash.slice(1)).split("|");
  const remember = (number) => (name) => { wanted[number] = name; history.replaceState(null, "", `#${encodeURIComponent(wanted.join("|"))}`); };
  const panes = data.runs.map((run, number) => {
    const source = data.live ? new LiveRun(run, number) : new EmbeddedRun(run);
    const pane = new Pane(source, place, remember(number));
    if (data.runs.length > 1) pane.node.prepend(element("h2", "run-name", run.name));
    return pane;
  });
  place.classList.toggle("beside", panes.length > 1);
  Pane.active = panes[0];
  listen(panes, help);
  const refresh = async () => {
    document.body.classList.toggle("lost", false);
    try { await Promise.all(panes.map((pane, number) => pane.refresh(wanted[number]))); } catch { document.body.classList.toggle("lost", true); }
    if (data.live) setTimeout(refresh, POLL_MS);
  };
  await refresh();
}

open();

// The list of episodes, and one of them turn by turn. Text reaches the page through textContent only.

const run = JSON.parse(document.getElementById("run").textContent);

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  for (const child of children) if (child !== null && child !== undefined) made.append(child instanceof Node ? child : String(child));
  return made;
}

const figure = (value, digits) => (typeof value === "number" ? value.toFixed(digits) : "–");

function outcome(episode) {
  if (episode.error) return "error";
  return episode.reward > 0 ? "good" : "bad";
}

function sampled(episode) {
  const counts = episode.turns.map((turn) => turn.sampled_tokens).filter((count) => typeof count === "number");
  return counts.length ? counts.reduce((a, b) => a + b, 0) : undefined;
}

function listEpisodes(show) {
  const body = element("tbody");
  run.episodes.forEach((episode, index) => {
    const row = element("tr", outcome(episode),
      element("td", "", `${episode.split === "test" ? "eval " : ""}${episode.batch + 1}`),
      element("td", "", `${episode.group.split("_").pop()}.${episode.episode}`),
      element("td", "number", figure(episode.reward, 2)),
      element("td", "number", episode.turns.length),
      element("td", "number", figure(sampled(episode), 0)),
      element("td", "number", figure(episode.seconds, 1)),
      element("td", "", episode.end_reason || "–"));
    row.tabIndex = 0;
    row.addEventListener("click", () => show(index));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") show(index); });
    body.append(row);
  });
  const head = element("tr", "", ...["batch", "episode", "reward", "turns", "tokens", "seconds", "ended"].map((name) => element("th", "", name)));
  return element("table", "list", element("thead", "", head), body);
}

// A message of the policy: its parts where it is the JSON that was asked for, and always as it was sampled.
function message(action) {
  let parsed = null;
  try { parsed = JSON.parse(action); } catch { /* shown as it stands */ }
  if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed)) return element("pre", "raw", action);
  const parts = element("div", "message");
  for (const name of ["analysis", "plan"]) if (parsed[name]) parts.append(element("p", "", element("b", "", name), " ", parsed[name]));
  for (const command of Array.isArray(parsed.commands) ? parsed.commands : []) {
    const keys = command && typeof command === "object" ? command.keystrokes : command;
    const wait = command && typeof command.duration === "number" ? `${command.duration} s` : "";
    parts.append(element("div", "command", element("code", "", JSON.stringify(keys)), element("span", "wait", wait)));
  }
  if (parsed.task_complete) parts.append(element("p", "complete", "task complete"));
  parts.append(element("details", "", element("summary", "", "JSON"), element("pre", "raw", JSON.stringify(parsed, null, 2))));
  return parts;
}

function turnCard(turn, index, jump) {
  const metrics = turn.metrics || {};
  const facts = [
    ["reward", figure(turn.reward, 2)],
    ["prompt tokens", turn.prompt_tokens],
    ["sampled tokens", turn.sampled_tokens],
    ["step", metrics["time/step_sec"] === undefined ? undefined : `${figure(metrics["time/step_sec"], 2)} s`],
    ["verifier", metrics["time/verifier_sec"] === undefined ? undefined : `${figure(metrics["time/verifier_sec"], 2)} s`],
    ["exit code", turn.exit_code],
    ["waits", (turn.waits || []).join(", ") || undefined],
  ].filter(([, value]) => value !== undefined && value !== null);
  const number = element("button", "turn-number", `turn ${index + 1}`);
  number.title = "show this turn in the recording";
  number.addEventListener("click", () => jump(index));
  return element("article", "turn",
    element("h3", "", number, ...facts.map(([name, value]) => element("span", "fact", element("i", "", name), ` ${value}`))),
    element("div", "sides", element("pre", "screen", turn.observation), message(turn.action)),
    turn.parse_error ? element("p", "error", `not read: ${turn.parse_error}`) : null);
}

function player(text) {
  if (typeof text !== "string") return { node: element("p", "quiet", "No recording is in this page."), jump() {}, stop() {} };
  let cast;
  try { cast = readCast(text); } catch { return { node: element("p", "error", "The recording can't be read."), jump() {}, stop() {} }; }
  const view = element("pre", "screen player");
  view.style.width = `${cast.columns}ch`;
  view.style.height = `${Math.max(6, cast.usedRows) * 1.25}em`;
  const slider = element("input");
  Object.assign(slider, { type: "range", min: 0, max: cast.events.length, value: cast.events.length });
  const label = element("span", "quiet");
  const button = element("button", "", "Play");
  const speed = element("select");
  for (const factor of [1, 0.25, 0.1]) speed.append(Object.assign(element("option", "", `${factor}×`), { value: factor }));
  let timer = null;
  const show = (count) => {
    slider.value = count;
    view.textContent = screenAfter(cast, count);
    const marker = cast.events.slice(0, count).findLast((event) => event.kind === "m");
    const at = count ? cast.events[count - 1].at : 0;
    label.textContent = `${at.toFixed(2)} of ${cast.seconds.toFixed(2)} s   ${marker ? marker.data : ""}`;
  };
  const stop = () => { clearTimeout(timer); timer = null; button.textContent = "Play"; };
  const advance = () => {
    const count = Number(slider.value);
    if (count >= cast.events.length) return stop();
    show(count + 1);
    const pause = count + 1 < cast.events.length ? cast.events[count + 1].at - cast.events[count].at : 0;
    timer = setTimeout(advance, (pause * 1000) / Number(speed.value));
  };
  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (Number(slider.value) >= cast.events.length) show(0);
    button.textContent = "Pause";
    advance();
  });
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  const jump = (turn) => {
    stop();
    const starts = cast.events.flatMap((event, index) => (event.kind === "m" ? [index] : []));
    show(turn + 2 < starts.length ? starts[turn + 2] : cast.events.length);
  };
  show(cast.events.length);
  return { node: element("div", "", view, element("div", "controls", button, slider, speed, label)), jump, stop };
}

function openEpisodes() {
  const place = document.getElementById("episodes");
  if (!run.episodes.length) return place.append(element("p", "quiet", "There are no transcripts of episodes in this page."));
  const detail = element("section", "detail");
  let current = null;
  let list = null;
  const show = (index) => {
    if (current) current.stop();
    const episode = run.episodes[index];
    current = player(episode.cast);
    const rewards = Object.entries(episode.rewards || {}).map(([name, value]) => `${name} ${value}`).join(", ");
    detail.replaceChildren(
      element("h2", "", episode.name),
      element("p", outcome(episode), [episode.end_reason, `reward ${figure(episode.reward, 2)}`, rewards && `verifier: ${rewards}`, `${figure(episode.seconds, 1)} s`].filter(Boolean).join(" · ")),
      episode.error ? element("p", "error", episode.error) : "",
      current.node,
      ...episode.turns.map((turn, number) => turnCard(turn, number, (turnIndex) => { current.jump(turnIndex); detail.scrollIntoView(); })),
      episode.final_observation ? element("article", "turn", element("h3", "", "final screen"), element("pre", "screen", episode.final_observation)) : "");
    list.querySelectorAll("tbody tr").forEach((row, number) => row.classList.toggle("chosen", number === index));
    history.replaceState(null, "", `#${index}`);
  };
  list = listEpisodes(show);
  place.append(element("div", "scroll", list), detail);
  const wanted = Number(location.hash.slice(1));
  show(Number.isInteger(wanted) && wanted >= 0 && wanted < run.episodes.length ? wanted : 0);
}

openEpisodes();

// One episode, turn by turn, with its recording.

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];

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
  parts.append(folded("JSON", element("pre", "raw", JSON.stringify(parsed, null, 2))));
  return parts;
}

const folded = (title, ...content) => element("details", "", element("summary", "", title), ...content);
const seconds = (value) => (typeof value === "number" ? `${value.toFixed(2)} s` : undefined);
const isNumber = (value) => typeof value === "number";

function logprobs(values) {
  const known = (values || []).filter(isNumber);
  if (!known.length) return undefined;
  const mean = known.reduce((a, b) => a + b, 0) / known.length;
  return `mean ${mean.toFixed(3)}, least ${Math.min(...known).toFixed(2)}`;
}

function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return known.map(([name, value]) => element("span", "fact", element("i", "", name), ` ${value}`));
}

function turnCard(turn, index, jump) {
  const metrics = turn.metrics || {};
  const shown = facts([
    ["reward", figure(turn.reward, 2)],
    ["prompt tokens", turn.prompt_tokens],
    ["sampled tokens", turn.sampled_tokens],
    ["logprob", logprobs(turn.logprobs)],
    ["queueing", seconds(turn.queued_sec)],
    isNumber(turn.queued_sec) ? ["thinking", seconds(turn.thinking_sec - turn.queued_sec)] : ["queueing and thinking", seconds(turn.thinking_sec)],
    ["step", seconds(metrics["time/step_sec"])],
    ["verifier", seconds(metrics["time/verifier_sec"])],
    ["exit code", turn.exit_code],
    ["waits", (turn.waits || []).join(", ")],
    ["left out", turn.omitted_bytes ? `${turn.omitted_bytes} bytes` : undefined],
    ["next prompt", turn.compacted],
  ]);
  const number = Object.assign(button(`turn ${index + 1}`, "show this turn in the recording", () => jump(index)), { className: "turn-number" });
  const card = element("article", "turn", element("h3", "", number, ...shown),
    element("div", "sides", element("pre", "screen", turn.observation), message(turn.action)),
    turn.parse_error ? element("p", "error", `not read: ${turn.parse_error}`) : null,
    ...(turn.summaries || []).map(summary));
  return card;
}

function summary(answer) {
  const state = answer.stop_reason === "length" ? "cut at the token limit" : answer.text ? "the next prompt begins with it" : "empty";
  const shown = facts([["outcome", state], ["logprob", logprobs(answer.logprobs)], ["thinking", seconds(answer.thinking_sec)]]);
  return element("div", "summary", element("h3", "", element("b", "", "summary"), ...shown), element("pre", "screen", answer.text));
}

function verdict(episode) {
  const verifier = episode.verifier;
  if (!verifier) return "";
  const files = Object.entries(verifier.files || {}).map(([name, size]) => element("li", "", element("code", "", name), ` ${size} bytes`));
  const rewards = Object.entries(episode.rewards || {}).map(([name, value]) => `${name} ${value}`).join(", ");
  return element("section", "verdict", element("h3", "", element("b", "", "verifier"), ...facts([["rewards", rewards]])),
    verifier.output ? element("pre", "screen", verifier.output) : element("p", "quiet", "It printed nothing."),
    files.length ? element("ul", "files", ...files) : "");
}

function services(episode) {
  return Object.entries(episode.services || {}).map(([name, output]) =>
    folded(`service ${name}`, output ? element("pre", "screen", output) : element("p", "quiet", "It printed nothing.")));
}

function start(episode) {
  const begun = episode.start || {};
  const metrics = begun.metrics || {};
  const shown = facts([
    ["sandbox", begun.sandbox],
    ["started in", seconds(metrics["time/sandbox_start_sec"])],
    ["terminal", seconds(metrics["time/terminal_open_sec"])],
    ["transport", begun.transport],
  ]);
  return element("div", "", shown.length ? element("h3", "", ...shown) : "",
    episode.system_prompt ? folded("system prompt", element("pre", "raw", episode.system_prompt)) : "");
}

function player(text) {
  const nothing = (node) => ({ node, jump() {}, stop() {}, toggle() {} });
  if (typeof text !== "string") return nothing(element("p", "quiet", "No recording is in this page."));
  let cast;
  try { cast = readCast(text); } catch { return nothing(element("p", "error", "The recording can't be read.")); }
  const view = element("pre", "screen player");
  view.style.width = `${cast.columns}ch`;
  view.style.height = `${Math.max(6, cast.usedRows) * 1.25}em`;
  const slider = element("input");
  Object.assign(slider, { type: "range", min: 0, max: cast.events.length, value: cast.events.length });
  slider.setAttribute("aria-label", "place in the recording");
  const label = element("span", "quiet");
  const speed = select("speed", SPEEDS.map((factor) => [factor, `${factor}×`]), () => {});
  speed.value = 1;
  let timer = null;
  const show = (count) => {
    slider.value = count;
    view.textContent = screenAfter(cast, count);
    const marker = cast.events.slice(0, count).findLast((event) => event.kind === "m");
    const at = count ? cast.events[count - 1].at : 0;
    label.textContent = `${at.toFixed(2)} of ${cast.seconds.toFixed(2)} s   ${marker ? `turn ${marker.data.replace(/:$/, "")}` : ""}`;
  };
  const stop = () => { clearTimeout(timer); timer = null; play.textContent = "Play"; };
  const advance = () => {
    const count = Number(slider.value);
    if (count >= cast.events.length) return stop();
    show(count + 1);
    const pause = count + 1 < cast.events.length ? cast.events[count + 1].at - cast.events[count].at : 0;
    timer = setTimeout(advance, (pause * 1000) / Number(speed.value));
  };
  const toggle = () => {
    if (timer !== null) return stop();
    if (Number(slider.value) >= cast.events.length) show(0);
    play.textContent = "Pause";
    advance();
  };
  const play = button("Play", "play or stop (space)", toggle);
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  const jump = (turn) => {
    stop();
    const starts = cast.events.flatMap((event, index) => (event.kind === "m" ? [index] : []));
    show(turn + 2 < starts.length ? starts[turn + 2] : cast.events.length);
  };
  show(cast.events.length);
  return { node: element("div", "", view, element("div", "controls", play, slider, speed, label)), jump, stop, toggle };
}

function link(text, address) {
  return Object.assign(element("a", "", text), { href: address, target: "_blank", rel: "noopener" });
}

// The command that hands an episode over just before a turn, for a shell.
function playCommand(place, episode, turn) {
  const from = `${place}/${episode.name}`;
  const quoted = /^[\w./,:@+-]+$/.test(from) ? from : `'${from.replaceAll("'", "'\\''")}'`;
  return `harbor-gym play --from ${quoted} --turn ${turn}`;
}

// Show an episode in a section; return its player.
function showEpisode(detail, episode, title, files, place) {
  const current = player(episode.cast);
  const playOn = element("code", "", playCommand(place, episode, Math.max(0, episode.turns.length - 1)));
  const jump = (turn) => {
    playOn.textContent = playCommand(place, episode, turn);
    current.jump(turn);
  };
  const address = (kind) => `${files}/${episode.name.split("/").map(encodeURIComponent).join("/")}.${kind}`;
  detail.replaceChildren(
    element("h2", "", title),
    element("p", outcome(episode), [episode.end_reason, `reward ${figure(episode.reward, 2)}`, `${figure(episode.seconds, 1)} s`, episode.task].filter(Boolean).join(" · "),
      isNumber(episode.trajectory_reward) ? ` · trajectory reward ${episode.trajectory_reward}` : "",
      files ? element("span", "links", " ", link("JSON", address("json")), " ", link("cast", address("cast"))) : ""),
    episode.error ? element("p", "error", episode.error) : "",
    episode.breakage ? element("p", "error", `the policy broke its sandbox: ${episode.breakage}`) : "",
    episode.stopped_processes?.length ? element("p", episode.reward === 0 ? "error" : "quiet", `stopped before grading: ${episode.stopped_processes.join(", ")}`) : "",
    episode.can_be_played ? element("p", "quiet", "go on just before the turn that is chosen, or the last one: ", playOn) : "",
    verdict(episode), ...services(episode), start(episode), current.node,
    ...episode.turns.map((turn, number) => turnCard(turn, number, (turnIndex) => { jump(turnIndex); detail.scrollIntoView(); })),
    episode.final_observation ? element("article", "turn", element("h3", "", "final screen"), element("pre", "screen", episode.final_observation)) : "");
  detail.scrollTop = 0;
  return { ...current, jump };
}

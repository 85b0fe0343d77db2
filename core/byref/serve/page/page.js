// The chat page: streams answers, and shows what the plugins did for them. Texts are never parsed as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const MOST_SQUARES = 600;
const turns = [];
let running = null;

function make(tag, className, text) {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text ?? "";
  return element;
}

async function call(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if ($("key").value) headers.Authorization = `Bearer ${$("key").value}`;
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  if (answer.ok) return answer;
  $("keyed").hidden = answer.status !== 401 && !$("key").value;
  const said = await answer.json().catch(() => null);
  throw new Error(said?.error?.message ?? `status ${answer.status}`);
}

// The events of a stream, one parsed object each.
async function* events(answer) {
  const decoder = new TextDecoder();
  let held = "";
  for (const reader = answer.body.getReader(); ;) {
    const { done, value } = await reader.read();
    held += decoder.decode(value, { stream: !done });
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
    if (done) throw new Error("the answer was cut off");
  }
}

function show(role, text) {
  const turn = make("p", `turn ${role}`, text);
  $("talk").append(turn);
  turn.scrollIntoView({ block: "end" });
  return turn;
}

// One event's pieces of text; those that accepted drafts brought are coloured.
function append(turn, pieces) {
  for (const [text, drafted] of pieces) {
    const kind = drafted ? "draft" : "";
    if (turn.lastChild?.className === kind) turn.lastChild.textContent += text;
    else turn.append(make("span", kind, text));
  }
  turn.scrollIntoView({ block: "end" });
}

function addStep(step, times) {
  times.push(step.seconds);
  const bar = make("i", step.drafts_kept ? "drafted" : "");
  bar.title = `step ${step.number}: ${(step.seconds * 1000).toFixed(1)} ms, ${step.rows} rows, ${step.drafts_kept} of ${step.drafted} drafts`;
  bar.dataset.seconds = step.seconds;
  $("steps").append(bar);
  const most = Math.max(...times);
  for (const one of $("steps").children) one.style.height = `${(100 * one.dataset.seconds) / most}%`;
  const mean = times.reduce((sum, seconds) => sum + seconds, 0) / times.length;
  $("steptime").textContent = `${(mean * 1000).toFixed(1)} ms, ${times.length} steps`;
}

function showUsage(usage) {
  const cached = usage.prompt_tokens_details.cached_tokens;
  const { drafted, accepted } = usage.drafts;
  $("cached").textContent = `${cached} of ${usage.prompt_tokens} prompt tokens`;
  $("cachedbar").style.width = `${(100 * cached) / usage.prompt_tokens}%`;
  $("count").textContent = `${usage.prompt_tokens} in, ${usage.completion_tokens} out`;
  $("drafts").textContent = drafted ? `${accepted} of ${drafted} accepted` : "none were made";
}

// Squares for pages where a plugin counts them, and for tokens of the cache otherwise.
function showMemory(used, cached, free, unit) {
  const all = used + cached + free;
  const each = Math.max(1, Math.ceil(all / MOST_SQUARES));
  const squares = [["used", used], ["cached", cached], ["", free]];
  $("map").replaceChildren(...squares.flatMap(([kind, count]) => Array.from({ length: Math.ceil(count / each) }, () => make("i", kind))));
  $("pages").textContent = `${used} used, ${cached} cached, ${free} free ${unit}` + (each > 1 ? `, ${each} to a square` : "");
}

async function refresh() {
  const { plugins, usage } = await (await call("v1/plugins")).json();
  $("plugins").replaceChildren(...plugins.map((one) => make("li", "", `${one.name} ${one.version}`)));
  const paged = plugins.find((one) => "free_pages" in one.figures)?.figures;
  if (paged) showMemory(paged.used_pages, paged.cached_pages, paged.free_pages, "pages");
  else showMemory(usage.used_tokens, 0, usage.capacity_tokens - usage.used_tokens, "tokens");
}

async function ask(text) {
  turns.push({ role: "user", content: text });
  show("user", text);
  const turn = show("assistant", "");
  const times = [];
  $("steps").replaceChildren();
  const body = {
    model: $("model").textContent,
    messages: turns,
    temperature: Number($("temperature").value),
    max_tokens: Number($("tokens").value),
    stream: true,
    stream_options: { include_usage: true, include_steps: true },
  };
  running = new AbortController();
  setBusy(true);
  try {
    for await (const event of events(await call("v1/chat/completions", body, running.signal))) {
      if (event.error) throw new Error(event.error.message);
      if (event.byref) append(turn, event.byref.pieces);
      if (event.byref?.step && event.byref.step.number !== turn.step) addStep(event.byref.step, times);
      turn.step = event.byref?.step?.number ?? turn.step;
      if (event.usage) showUsage(event.usage);
    }
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
  }
  if (turn.textContent) turns.push({ role: "assistant", content: turn.textContent });
  else turns.pop();
  setBusy(false);
  await refresh().catch(() => {});
}

function setBusy(busy) {
  $("send").disabled = busy;
  $("stop").disabled = !busy;
  document.body.dataset.busy = busy;
}

async function begin() {
  try {
    const { data } = await (await call("v1/models")).json();
    $("model").textContent = data[0].id;
    await refresh();
    setBusy(false);
  } catch (error) {
    $("model").textContent = error.message;
    setTimeout(begin, 1000);
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || $("send").disabled) return;
  $("text").value = "";
  ask(text);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
$("stop").addEventListener("click", () => running?.abort());
$("reset").addEventListener("click", () => {
  running?.abort();
  turns.length = 0;
  $("talk").replaceChildren();
});
setBusy(true);
$("stop").disabled = true;
begin();

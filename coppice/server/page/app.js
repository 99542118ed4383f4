// The page: chat with streaming, settings, the dashboard. All text goes in as text, never as markup.
'use strict';

const cache = new CacheState();
const state = { messages: [], model: null, stop: null, key: sessionStorage.getItem('coppice-key') || '', timer: null };
const BUDGETS = [32, 64, 128, 256, 512, 1024, 2048, 4096];
const SAMPLES = ['Tell me a short story about a woodcutter who never cuts the last shoot.',
  'What is coppicing, and why does it make trees live longer?',
  'List seven rivers and one thing about each.'];

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (state.key) headers.Authorization = `Bearer ${state.key}`;
  const response = await fetch(path, { ...options, headers });
  byId('key-form').hidden = response.status !== 401;
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Error(body && body.error ? body.error.message : `the server answered ${response.status}`);
}

function say(text, bad = false) {
  byId('status').textContent = text;
  byId('status').classList.toggle('bad', bad);
}

function budgetOf(index) { return index >= BUDGETS.length ? 'full' : BUDGETS[index]; }

function showBudget() {
  const budget = budgetOf(Number(byId('budget').value));
  const text = budget === 'full' ? 'full' : formatCount(budget);
  byId('budget-now').textContent = text;
  byId('budget').setAttribute('aria-valuetext', budget === 'full' ? 'full: nothing is evicted' : `${text} entries per head`);
}

async function connect() {
  if (state.key === '' && state.needsKey) return;
  try {
    state.model = (await (await call('/v1/models')).json()).data[0];
  } catch (error) {
    byId('model').textContent = 'not connected';
    state.needsKey = true;
    return say(error.message, true);
  }
  const { id, kv } = state.model;
  byId('model').textContent = id;
  byId('policy').replaceChildren(...kv.policies.filter((name) => name !== 'full').map((name) => {
    const option = document.createElement('option');
    option.textContent = option.value = name;
    return option;
  }));
  byId('policy').value = kv.policy;
  let index = BUDGETS.indexOf(Number(kv.budget));
  if (index < 0) index = kv.budget === 'full' ? BUDGETS.length : BUDGETS.findIndex((b) => b >= (Number(kv.budget) || 1024));
  byId('budget').value = index < 0 ? 5 : index;
  showBudget();
  say('');
}

// A turn whose tokens the trace will fill in.
function addTurn(role) {
  byId('empty').hidden = true;
  const turn = document.createElement('div'), who = document.createElement('div'), text = document.createElement('div');
  turn.className = 'turn';
  who.className = 'who';
  who.textContent = role === 'user' ? 'You' : role === 'assistant' ? 'Model' : 'Instructions';
  text.className = 'text';
  turn.append(who, text);
  byId('log').append(turn);
  return text;
}

function atEnd() {
  const log = byId('log');
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
}

// Places the model's own tokens: ChatML-like templates write "role\n" after a control token, which becomes the turn.
class Layout {
  constructor() { this.turn = null; this.head = null; this.last = false; }

  add(position, text, special) {
    cache.texts[position] = text;
    cache.spans[position] = null;
    if (special) { this.head = /start|header|user|assistant|system/i.test(text) && !/end/i.test(text) ? '' : null; this.turn = null; return; }
    if (this.head !== null && !this.turn) {
      this.head += text;
      const line = this.head.indexOf('\n');
      if (line < 0 && this.head.length < 24) return;
      this.turn = addTurn(this.head.slice(0, line).trim() || 'user');
      text = this.head.slice(line + 1);
      if (!text) return;
    }
    if (!this.turn) { if (!text.trim()) return; this.turn = addTurn('assistant'); }
    const span = document.createElement('span');
    span.className = 't fresh';
    span.textContent = text;
    span.dataset.at = position;
    this.turn.append(span);
    cache.spans[position] = span;
  }
}

function take(event, run) {
  if (event.error) throw new Error(event.error.message);
  if (event.usage) run.usage = event.usage;
  const trace = event.kv_trace;
  if (trace && trace.layers) {
    for (const turn of byId('log').querySelectorAll('.turn')) turn.remove();
    cache.begin(trace);
    run.layout = new Layout();
  } else if (trace && trace.tokens) {
    const special = new Set(trace.special), follow = atEnd();
    trace.tokens.forEach((text, i) => run.layout.add(trace.first + i, text, special.has(i)));
    if (follow || trace.first === 0) byId('log').scrollTop = byId('log').scrollHeight;
  } else if (trace) {
    cache.update(trace);
  }
  for (const choice of event.choices || []) {
    run.answer += choice.delta.content || '';
    if (choice.finish_reason) run.end = choice.finish_reason;
  }
}

async function readStream(response, run) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) if (event !== 'data: [DONE]') take(JSON.parse(event.slice(6)), run);
  }
}

function requestBody() {
  const budget = budgetOf(Number(byId('budget').value));
  const kv = { trace: true, budget };
  if (budget !== 'full') {
    kv.policy = byId('policy').value;
    for (const name of ['sinks', 'recent']) if (byId(name).value !== '') kv[name] = Number(byId(name).value);
  }
  return { messages: state.messages, stream: true, stream_options: { include_usage: true }, temperature: 0.7,
    max_tokens: Number(byId('length').value) || 256, kv };
}

async function send(text) {
  if (!text || state.stop) return;
  state.messages.push({ role: 'user', content: text });
  const waiting = addTurn('user');
  waiting.textContent = text;
  byId('message').value = '';
  state.stop = new AbortController();
  byId('stop').hidden = false;
  byId('send').disabled = true;
  say('Reading…');
  const run = { answer: '', layout: null, usage: null, end: null };
  const began = performance.now();
  try {
    await readStream(await call('/v1/chat/completions', { method: 'POST', signal: state.stop.signal,
      headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(requestBody()) }), run);
    const { usage } = run, seconds = (performance.now() - began) / 1000;
    say(`${usage.completion_tokens} tokens in ${seconds.toFixed(1)} s, ${usage.kv.reused} of ${usage.prompt_tokens} read before` +
      (run.end === 'length' ? '; the answer was cut at its length.' : '.'));
  } catch (error) {
    const stopped = error.name === 'AbortError';
    say(stopped ? 'Stopped.' : error.message, !stopped);
    if (!run.answer) { state.messages.pop(); byId('message').value = text; if (!run.layout) waiting.parentNode.remove(); }
  }
  if (run.answer) state.messages.push({ role: 'assistant', content: run.answer });
  state.stop = null;
  byId('stop').hidden = true;
  byId('send').disabled = false;
}

function clearChat() {
  if (state.stop) state.stop.abort();
  state.messages = [];
  for (const turn of byId('log').querySelectorAll('.turn')) turn.remove();
  byId('empty').hidden = false;
  cache.setFocus(null);
  cache.spans = []; cache.held = []; cache.texts = []; cache.view = null;
  if (cache.shape) cache.drawMap();
  say('');
}

// The dashboard.
const TILES = [
  { name: 'Generated', unit: 'tokens/s', value: (m, d) => d('generated_tokens_total'), more: (m) => `${formatCount(m.generated_tokens_total)} in all` },
  { name: 'Read', unit: 'tokens/s', value: (m, d) => d('prompt_tokens_total'), more: (m) => `${formatCount(m.prompt_tokens_total)} in all` },
  { name: 'Running', value: (m) => m.requests_running, more: (m) => `${formatCount(m.requests_waiting)} waiting` },
  { name: 'Pool in use', value: (m) => m.kv_bytes, show: formatBytes, more: (m) => `of ${formatBytes(m.kv_bytes_bound)}, peak ${formatBytes(m.kv_bytes_peak)}` },
  { name: 'Evicted', unit: 'entries/s', value: (m, d) => d('evicted_entries_total'), more: (m) => `${formatCount(m.evicted_entries_total)} in all` },
  { name: 'Reused', value: (m) => m.prompt_tokens_total ? m.reused_tokens_total / m.prompt_tokens_total * 100 : 0, show: (v) => `${v.toFixed(0)} %`, more: (m) => `${formatCount(m.reused_tokens_total)} tokens, ${formatCount(m.snapshots)} snapshots` },
  { name: 'First token', value: (m) => m.first_token_seconds_count ? m.first_token_seconds_sum / m.first_token_seconds_count : 0, show: (v) => `${v.toFixed(2)} s`, more: () => 'mean since the start' },
  { name: 'Answered', value: (m) => m.requests_finished_total, more: (m) => `${formatCount(m.requests_cancelled_total)} cancelled, ${formatCount(m.requests_failed_total)} failed` },
];
let samples = [];

function buildTiles() {
  for (const tile of TILES) {
    const node = document.createElement('section');
    node.className = 'tile';
    const [head, number, more] = ['h2', 'b', 'small'].map((name) => document.createElement(name));
    head.textContent = tile.name;
    const spark = svg('svg', { class: 'spark', viewBox: '0 0 240 36', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
    node.append(head, number, more, spark);
    byId('tiles').append(node);
    Object.assign(tile, { number, small: more, spark, values: [] });
  }
}

async function readMetrics() {
  let text;
  try {
    text = await (await call('/metrics')).text();
  } catch (error) {
    byId('board-note').textContent = error.message;
    return;
  }
  const now = { at: performance.now() / 1000 };
  for (const line of text.split('\n')) {
    const match = /^coppice_(\w+) (\S+)$/.exec(line);
    if (match) now[match[1]] = Number(match[2]);
  }
  samples = [...samples, now].slice(-90);
  const old = samples[Math.max(0, samples.length - 3)];
  const rate = (name) => now.at > old.at ? Math.max(0, (now[name] - old[name]) / (now.at - old.at)) : 0;
  for (const tile of TILES) {
    const value = tile.value(now, rate);
    tile.values = [...tile.values, value].slice(-90);
    tile.number.textContent = tile.show ? tile.show(value) : formatCount(value);
    tile.small.textContent = (tile.unit ? `${tile.unit} · ` : '') + tile.more(now);
    drawSpark(tile.spark, tile.values);
  }
}

function openTab(name) {
  for (const other of ['chat', 'board']) {
    const on = other === name, tab = byId(`tab-${other}`);
    byId(`view-${other}`).hidden = !on;
    tab.setAttribute('aria-selected', on);
    tab.tabIndex = on ? 0 : -1;
  }
  clearInterval(state.timer);
  if (name === 'board') { readMetrics(); state.timer = setInterval(readMetrics, 1000); }
}

// Light, dark, or as the system.
const system = matchMedia('(prefers-color-scheme: dark)');
function applyScheme(choice) {
  const scheme = choice === 'auto' ? (system.matches ? 'dark' : 'light') : choice;
  document.documentElement.dataset.scheme = scheme;
  byId('scheme').textContent = { auto: 'Auto', light: 'Light', dark: 'Dark' }[choice];
  byId('scheme').setAttribute('aria-label', `Colour scheme: ${choice === 'auto' ? 'as the system' : choice}`);
  localStorage.setItem('coppice-scheme', choice);
}
const schemeNow = () => localStorage.getItem('coppice-scheme') || 'auto';

function listen() {
  byId('form').addEventListener('submit', (event) => { event.preventDefault(); send(byId('message').value.trim()); });
  byId('message').addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); byId('form').requestSubmit(); }
  });
  byId('stop').addEventListener('click', () => state.stop && state.stop.abort());
  byId('clear').addEventListener('click', clearChat);
  byId('budget').addEventListener('input', showBudget);
  byId('key-form').addEventListener('submit', (event) => {
    event.preventDefault();
    state.key = byId('key').value;
    sessionStorage.setItem('coppice-key', state.key);
    connect();
  });
  const log = byId('log');
  log.addEventListener('pointerover', (event) => {
    const at = event.target.dataset && event.target.dataset.at;
    cache.setFocus(at === undefined ? null : Number(at));
  });
  log.addEventListener('pointerleave', () => cache.setFocus(null));
  log.addEventListener('blur', () => cache.setFocus(null));
  log.addEventListener('keydown', (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -12, ArrowDown: 12 }[event.key];
    if (event.key === 'Escape') cache.setFocus(null);
    if (!step) return;
    event.preventDefault();
    cache.move(step);
  });
  for (const name of ['chat', 'board']) {
    byId(`tab-${name}`).addEventListener('click', () => openTab(name));
    byId(`tab-${name}`).addEventListener('keydown', (event) => {
      if (event.key !== 'ArrowLeft' && event.key !== 'ArrowRight') return;
      const other = name === 'chat' ? 'board' : 'chat';
      openTab(other);
      byId(`tab-${other}`).focus();
    });
  }
  byId('scheme').addEventListener('click', () => applyScheme({ auto: 'dark', dark: 'light', light: 'auto' }[schemeNow()]));
  system.addEventListener('change', () => applyScheme(schemeNow()));
}

applyScheme(schemeNow());
for (const text of SAMPLES) {
  const button = document.createElement('button');
  button.className = 'quiet';
  button.textContent = text;
  button.addEventListener('click', () => send(text));
  byId('samples').append(button);
}
buildTiles();
listen();
connect();

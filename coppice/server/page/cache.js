// What the page knows of the cache, and how it draws it: text coloured by heads, the layer x head map, bytes.
'use strict';

const byId = (id) => document.getElementById(id);

function formatBytes(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB'];
  let i = 0;
  while (bytes >= 1024 && i < units.length - 1) { bytes /= 1024; ++i; }
  return `${bytes >= 100 || i === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[i]}`;
}

function formatCount(n) {
  if (n >= 1e7) return `${(n / 1e6).toFixed(1)} M`;
  return Math.round(n).toLocaleString('en-US');
}

function svg(name, attributes) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key of Object.keys(attributes)) node.setAttribute(key, attributes[key]);
  return node;
}

// A line over its area, from 0 to the largest value.
function drawSpark(target, values) {
  target.replaceChildren();
  if (values.length < 2) return;
  const [width, height] = target.getAttribute('viewBox').split(' ').slice(2).map(Number);
  const top = Math.max(...values, 1e-9);
  const points = values.map((v, i) =>
    `${(i / (values.length - 1) * width).toFixed(1)} ${(height - 2 - v / top * (height - 4)).toFixed(1)}`);
  target.append(svg('path', { class: 'area', d: `M0 ${height}L${points.join('L')}L${width} ${height}Z` }),
    svg('path', { d: `M${points.join('L')}` }));
}

class CacheState {
  constructor() {
    this.spans = [];      // by position; null where a token is not shown
    this.texts = [];
    this.held = [];       // by position: bit set, or nothing
    this.shape = null;    // {layers, heads, bytes_bound, budget, policy, prompt}
    this.view = null;
    this.evictions = [];  // of each view
    this.focus = null;    // position under the pointer
    this.cells = [];
  }

  begin(shape) {
    this.shape = shape;
    this.view = null;
    this.spans = []; this.texts = []; this.held = []; this.evictions = [];
    this.focus = null;
    this.buildMap();
    this.drawMap();
  }

  rows() { return this.shape.layers * this.shape.heads; }

  holds(position, row) {
    const bits = this.held[position];
    return bits ? bits[row >> 3] >> (row & 7) & 1 : 0;
  }

  count(position) {
    let n = 0;
    for (let bits of this.held[position] || []) for (; bits; bits &= bits - 1) ++n;
    return n;
  }

  update(view) {
    const stride = Math.ceil(this.rows() / 8);
    const bytes = Uint8Array.from(atob(view.held), (c) => c.charCodeAt(0));
    const before = this.view ? this.view.evicted : 0;
    this.view = view;
    view.at.forEach((position, i) => {
      this.held[position] = bytes.subarray(i * stride, (i + 1) * stride);
      this.paint(position);
    });
    this.evictions.push(view.evicted - before);
    if (this.evictions.length > 120) this.evictions.shift();
    this.drawMap();
    this.drawFacts(view.evicted - before);
  }

  // Classes, not colours: the scheme may change at any time.
  paint(position) {
    const span = this.spans[position];
    if (!span) return;
    const read = this.view && position < this.view.seen;
    const share = read ? this.count(position) / this.rows() : 1;
    const level = share === 0 ? 0 : Math.min(5, 1 + Math.floor(share * 4.999));
    const focused = span.classList.contains('on');
    span.className = `t ${read ? `h${level}` : 'fresh'}${focused ? ' on' : ''}`;
  }

  buildMap() {
    const { layers, heads } = this.shape;
    const map = byId('map');
    map.style.gridTemplateColumns = `20px repeat(${layers}, minmax(0, 1fr))`;
    map.style.gridTemplateRows = `repeat(${heads}, auto) 14px`;
    map.replaceChildren();
    this.cells = [];
    const cell = (name, text) => {
      const node = document.createElement('i');
      if (name) node.className = name;
      if (text) node.textContent = text;
      map.append(node);
      return node;
    };
    for (let h = 0; h < heads; ++h) cell('name', `h${h}`);
    cell('tick', '');
    for (let layer = 0; layer < layers; ++layer) {
      for (let h = 0; h < heads; ++h) this.cells.push(cell('', ''));
      cell('tick', layer % 5 === 0 ? String(layer) : '');
    }
    this.cells.forEach((node, row) => {
      node.addEventListener('pointerenter', () => this.describeRow(row));
    });
  }

  describeRow(row) {
    if (!this.view) return;
    byId('map-note').textContent = `Layer ${Math.floor(row / this.shape.heads)}, head ${row % this.shape.heads}: ` +
      `${formatCount(this.view.rows[row])} of ${formatCount(this.view.seen)} entries held.`;
  }

  static colour(share) {
    const stop = Math.max(0, Math.min(5, share * 5));
    const low = Math.floor(stop), part = stop - low;
    return `color-mix(in oklab, var(--c${Math.min(5, low + 1)}) ${(part * 100).toFixed(0)}%, var(--c${low}))`;
  }

  drawMap() {
    if (this.focus !== null) return this.drawToken(this.focus);
    const rows = this.view ? this.view.rows : this.cells.map(() => 0);
    const top = Math.max(1, ...rows);
    this.cells.forEach((node, row) => { node.style.backgroundColor = CacheState.colour(rows[row] / top); });
    byId('map-title').textContent = 'entries held';
    byId('legend-low').textContent = '0';
    byId('legend-high').textContent = this.view ? formatCount(top) : '–';
    byId('map').setAttribute('aria-label', this.view
      ? `${this.shape.layers} layers by ${this.shape.heads} heads; a head holds ${Math.min(...rows)} to ${top} entries`
      : 'No entries yet');
  }

  drawToken(position) {
    const held = this.count(position);
    this.cells.forEach((node, row) => {
      node.style.backgroundColor = this.holds(position, row) ? 'var(--c5)' : 'var(--c0)';
    });
    byId('legend-low').textContent = 'gone';
    byId('legend-high').textContent = 'held';
    const word = this.texts[position].trim() || 'a blank';
    byId('map-title').textContent = `“${word.slice(0, 24)}”`;
    const read = this.view && position < this.view.seen;
    const layers = new Set();
    for (let row = 0; row < this.rows(); ++row) if (this.holds(position, row)) layers.add(Math.floor(row / this.shape.heads));
    const note = read ? `Token ${position}: held by ${held} of ${this.rows()} heads, in ${layers.size} of ${this.shape.layers} layers.`
      : `Token ${position}: written, not yet read back.`;
    byId('map-note').textContent = note;
    byId('map').setAttribute('aria-label', note);
  }

  setFocus(position) {
    if (this.focus !== null && this.spans[this.focus]) this.spans[this.focus].classList.remove('on');
    this.focus = position;
    if (position !== null && this.spans[position]) this.spans[position].classList.add('on');
    if (this.shape) this.drawMap();
    if (position === null) byId('map-note').textContent = 'Point at a word, or move with the arrow keys, to see which heads still hold it.';
  }

  // The next shown token in that direction; the last one when nothing is focused.
  move(step) {
    const last = this.spans.length - 1;
    let position = this.focus === null ? last : this.focus + step;
    while (position >= 0 && position <= last && !this.spans[position]) position += Math.sign(step);
    if (position >= 0 && position <= last) {
      this.setFocus(position);
      this.spans[position].scrollIntoView({ block: 'nearest' });
    }
  }

  drawFacts(evictedNow) {
    const view = this.view, bound = this.shape.bytes_bound;
    byId('seen').textContent = formatCount(view.seen);
    byId('kept').textContent = formatCount(view.kept);
    byId('evicted').textContent = formatCount(view.evicted);
    byId('bytes').textContent = `${formatBytes(view.bytes)} of ${formatBytes(bound)}`;
    byId('meter-own').style.width = `${view.bytes / bound * 100}%`;
    byId('meter-pool').style.width = `${view.pool_bytes / bound * 100}%`;
    const meter = byId('meter');
    meter.setAttribute('aria-valuemax', bound);
    meter.setAttribute('aria-valuenow', view.bytes);
    meter.setAttribute('aria-valuetext', byId('bytes').textContent);
    drawSpark(byId('evict-spark'), this.evictions);
    const limit = this.shape.budget === null ? 'Nothing is evicted: no budget.' : `Budget ${formatCount(this.shape.budget)} per head`;
    byId('evict-now').textContent = view.evicted === 0 ? (this.shape.budget === null ? limit : `${limit}: room for all so far.`)
      : `${limit}; ${formatCount(evictedNow)} just evicted, ${(view.kept / (view.kept + view.evicted) * 100).toFixed(0)}% of all kept.`;
  }
}

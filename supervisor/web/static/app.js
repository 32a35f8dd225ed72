// Keeps the page up to date. The server sends finished markup; only what differs is touched, so that focus, selection,
// scrolling and what somebody has opened stay as they are. Nothing is ever evaluated: text comes escaped, and the
// content security policy allows no inline script or style.
"use strict";

const content = () => document.getElementById("content");
let skew = 0; // seconds that the host's clock is ahead of this one's
let lost = false;

function words(seconds) {
  const whole = Math.round(Math.max(0, seconds));
  if (whole < 60) return `${whole} s`;
  const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => whole >= size);
  const [unit, size] = units[first];
  const [nextUnit, nextSize] = units[first + 1];
  const rest = Math.floor((whole % size) / nextSize);
  const large = `${Math.floor(whole / size)} ${unit}`;
  return rest ? `${large} ${rest} ${nextUnit}` : large;
}

function tick() {
  const now = Date.now() / 1000 + skew;
  for (const time of document.querySelectorAll("time.ticking")) {
    const { from, until } = time.dataset;
    const text = words(from === undefined ? Number(until) - now : now - Number(from));
    if (time.textContent !== text) time.textContent = text;
  }
}

function sameKind(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id || "") === (other.id || "");
}

function update(present, wanted) {
  if (present.nodeType !== Node.ELEMENT_NODE) {
    if (present.nodeValue !== wanted.nodeValue) present.nodeValue = wanted.nodeValue;
    return;
  }
  for (const { name, value } of [...wanted.attributes]) {
    // What somebody has opened or closed stays so.
    if (name !== "open" && present.getAttribute(name) !== value) present.setAttribute(name, value);
  }
  for (const { name } of [...present.attributes]) {
    if (name !== "open" && !wanted.hasAttribute(name)) present.removeAttribute(name);
  }
  const children = [...wanted.childNodes];
  children.forEach((child, at) => {
    let there = present.childNodes[at];
    if (child.id) {
      const known = [...present.childNodes].find((one) => one.id === child.id);
      if (known && known !== there) present.insertBefore(known, there ?? null);
      there = known;
    }
    if (there && sameKind(there, child)) update(there, child);
    else if (there && !child.id && !there.id) present.replaceChild(document.importNode(child, true), there);
    else present.insertBefore(document.importNode(child, true), present.childNodes[at] ?? null);
  });
  while (present.childNodes.length > children.length) present.lastChild.remove();
}

function states(root) {
  return new Map([...root.querySelectorAll("[data-server]")].map((row) => [row.dataset.server, row.dataset.state]));
}

function announce(before, after) {
  const news = [...after].filter(([name, state]) => before.has(name) && before.get(name) !== state);
  if (!news.length) return;
  document.getElementById("announce").textContent = news.map(([name, state]) => `${name} is ${state}`).join(", ");
  for (const [name, state] of news) {
    const details = document.getElementById(`server-${name}`);
    if (details && state !== "running" && state !== "stopped") details.open = true;
  }
}

function show(html) {
  const wanted = new DOMParser().parseFromString(html, "text/html").getElementById("content");
  if (!wanted) return;
  const before = states(content());
  skew = Number(wanted.dataset.now) - Date.now() / 1000;
  update(content(), wanted);
  document.title = wanted.dataset.title;
  announce(before, states(content()));
  tell();
  tick();
}

function tell() {
  const live = document.getElementById("live");
  live.dataset.state = lost ? "lost" : "live";
  const at = new Date().toLocaleTimeString([], { hour12: false });
  live.textContent = lost ? `connection lost, seen last at ${at}` : "live";
  document.documentElement.classList.toggle("stale", lost);
}

function openTarget() {
  const details = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (details instanceof HTMLDetailsElement) details.open = true;
}

function follow() {
  const source = new EventSource("/live");
  source.addEventListener("content", (event) => {
    lost = false;
    show(event.data);
  });
  source.addEventListener("open", () => {
    if (lost) {
      lost = false;
      tell();
    }
  });
  source.addEventListener("error", () => {
    if (!lost) {
      lost = true;
      tell();
    }
    if (source.readyState === EventSource.CLOSED) {
      source.close();
      setTimeout(follow, 3000); // the daemon may be on its way back
    }
  });
}

skew = Number(content().dataset.now) - Date.now() / 1000;
addEventListener("hashchange", openTarget);
openTarget();
setInterval(tick, 1000);
follow();

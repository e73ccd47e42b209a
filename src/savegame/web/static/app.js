// What HTML cannot do alone: one-time links, keyboard shortcuts, the theme, and fetching live parts only when they changed.
"use strict";

// -- the door: the secret behind the # becomes a session

async function openDoor(says) {
  const secret = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  if (!secret) {
    says.textContent = "Open the link that savegame ui printed. Each link works once.";
    return;
  }
  const answer = await fetch("/open", { method: "POST", body: new URLSearchParams({ secret }) });
  const text = await answer.text();
  if (answer.ok) location.replace(text);
  else says.textContent = `Not opened: ${text.trim()}. Use the newest link in the terminal; if you did not use this one, stop savegame ui.`;
}

const door = document.getElementById("door-says");
if (door) openDoor(door).catch(() => { door.textContent = "Not connected. Was savegame ui stopped?"; });

// -- live parts: polled while the page is visible, and sent only if they changed

const marks = new Map();
const lost = document.getElementById("lost");
let ended = false;

document.addEventListener("htmx:config:request", (event) => {
  const { ctx } = event.detail;
  if (!ctx.sourceElement.hasAttribute("data-live") || ctx.sourceEvent?.type !== "every") return;
  if (document.hidden || ended) event.preventDefault();
  else if (marks.has(ctx.request.action)) ctx.request.headers["If-None-Match"] = marks.get(ctx.request.action);
});

document.addEventListener("htmx:after:request", (event) => {
  const { ctx } = event.detail;
  const mark = ctx.response.headers.get("ETag");
  if (mark && ctx.response.status === 200) {
    marks.clear();
    marks.set(ctx.request.action, mark);
  }
  const { status } = ctx.response;
  if (status === 403) location.reload();
  else if (status < 400) lost.hidden = true;
  else say(status < 500 ? refusal(ctx.text) : "The store does not answer, or the page failed. Reload the page for details.");
  if (status === 404 && ctx.sourceElement.hasAttribute("data-live")) end();
});

document.addEventListener("htmx:error", () => say("Not connected. Was savegame ui stopped?"));

function say(text) {
  lost.textContent = text;
  lost.hidden = false;
}

function refusal(page) {
  return new DOMParser().parseFromString(page, "text/html").querySelector("[role=alert]")?.textContent ?? "The action failed.";
}

// The thread was deleted: its last view stays readable, without updates and actions.
function end() {
  ended = true;
  for (const offer of document.querySelectorAll(".live, .actions, form.act, a[download]")) offer.remove();
}

// -- the message about the last action appears once, not again after a reload

const address = new URL(location.href);
if (address.searchParams.has("done")) {
  for (const name of ["done", "undo"]) address.searchParams.delete(name);
  history.replaceState(history.state, "", address);
}

// -- light and dark

document.getElementById("theme")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("savegame-theme", root.dataset.theme);
});

// -- keys

const keys = document.getElementById("keys");
document.getElementById("show-keys")?.addEventListener("click", () => keys.showModal());

function step(by) {
  const rows = [...document.querySelectorAll("a.pick, a.row-link")];
  const now = rows.indexOf(document.activeElement);
  const start = rows.findIndex((row) => row.getAttribute("aria-current") === "true");
  const next = now >= 0 ? now + by : Math.max(start, 0);
  rows[Math.min(Math.max(next, 0), rows.length - 1)]?.focus();
}

const bound = {
  "/": () => document.getElementById("q")?.focus(),
  "?": () => keys?.showModal(),
  j: () => step(1),
  k: () => step(-1),
  c: () => document.activeElement?.closest(".row")?.querySelector(".compare")?.click(),
};

// In the search field: Enter and ↓ go to the first result, Escape leaves.
document.getElementById("q")?.addEventListener("keydown", (event) => {
  if (event.isComposing || !["Enter", "ArrowDown", "Escape"].includes(event.key)) return;
  event.preventDefault();
  if (event.key === "Escape") event.target.blur();
  else document.querySelector("a.row-link, #hits a")?.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || keys?.open) return;
  if (event.target.closest("input, select, textarea")) return;
  const action = bound[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

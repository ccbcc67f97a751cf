// The script of the pages of `quintain view` and of the gateway: the token's exchange, keys, copying, and pages that update themselves.
"use strict";

(() => {
  const one = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const announce = (text) => {
    const place = one("#announcement");
    if (place) place.textContent = text;
  };

  const script = document.currentScript;

  // The token stands in the fragment, which a browser sends to nobody. It is exchanged for a cookie and removed.
  async function enter() {
    const token = new URLSearchParams(location.hash.slice(1)).get("token");
    if (!token) return;
    history.replaceState(null, "", location.pathname + location.search);
    await enterWith(token);
  }

  async function enterWith(token) {
    const answer = await fetch(new URL("../enter", script.src), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token }),
    }).catch(() => null);
    if (answer && answer.ok) {
      if (one("[data-enter]")) location.reload();
      return;
    }
    const message = one("#enter-message");
    if (message) message.textContent = one("[data-enter]").dataset.enter;
  }

  // Lines that j and k walk through: rows of a list, trials of a comparison; of a file those that are in sight.
  const lines = () => all("[data-line]").filter((line) => line.offsetParent);
  let current = -1;

  function select(number) {
    const found = lines();
    if (!found.length) return;
    current = Math.max(0, Math.min(found.length - 1, number));
    for (const line of all("[data-current]")) delete line.dataset.current;
    const line = found[current];
    line.dataset.current = "";
    const link = line.querySelector("a");
    if (link) link.focus({ preventScroll: true });
    line.scrollIntoView({ block: "nearest" });
  }

  // The next or the previous failure: of the lines of this page, or a case of the list.
  function toFailure(step) {
    const found = lines();
    let number = (current < 0 && step < 0 ? found.length : current) + step;
    while (found[number] && found[number].dataset.failure === undefined) number += step;
    if (found[number]) select(number);
    else follow(step > 0 ? "a[data-failure=next]" : "a[data-failure=previous]");
  }

  function follow(selector) {
    const link = one(selector);
    if (link) link.click();
  }

  function toggleKeys() {
    const dialog = one("#keys");
    if (!dialog) return;
    if (dialog.open) dialog.close();
    else dialog.showModal();
  }

  const KEYS = {
    j: () => select(current + 1),
    k: () => select(current - 1),
    n: () => follow("a[rel=next]"),
    p: () => follow("a[rel=prev]"),
    u: () => follow("a[data-up]"),
    1: () => follow("[data-key='1']"),
    2: () => follow("[data-key='2']"),
    3: () => follow("[data-key='3']"),
    "?": toggleKeys,
    f: () => toFailure(1),
    F: () => toFailure(-1),
    "/": () => (one("a[data-search]") ? follow("a[data-search]") : one("#q")?.focus()),
  };

  function isTyping(target) {
    return target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select") !== null;
  }

  function onKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape" && isTyping(event.target)) event.target.blur();
    if (isTyping(event.target) || !Object.hasOwn(KEYS, event.key)) return;
    event.preventDefault();
    KEYS[event.key]();
  }

  async function copy(id) {
    const place = document.getElementById(id);
    if (!place) return;
    try {
      await navigator.clipboard.writeText(place.textContent);
      announce("Copied.");
    } catch {
      getSelection().selectAllChildren(place);
      announce("Selected: copy it with the keyboard.");
    }
  }

  function onClick(event) {
    const button = event.target.closest("[data-copy], [data-dialog]");
    if (!button) return;
    if (button.dataset.copy) copy(button.dataset.copy);
    else toggleKeys();
  }

  // What a form of filters asks for is an address without its empty fields. The page at it takes the place of this one,
  // so that the chosen field keeps the focus.
  let shownAt = location.pathname + location.search;

  async function apply(form) {
    const fields = [...new FormData(form)].filter(([, value]) => value !== "");
    const query = new URLSearchParams(fields).toString();
    const address = new URL(form.getAttribute("action") || location.pathname, location.href);
    history.pushState(null, "", address.pathname + (query && `?${query}`));
    await show();
  }

  async function show() {
    if (location.pathname + location.search === shownAt) return;
    shownAt = location.pathname + location.search;
    current = -1;
    if (!(await refresh({ isAsked: true }))) location.reload();
    announce(one("main [role=status]")?.textContent ?? "");
  }

  function onSubmit(event) {
    const form = event.target;
    if (form.id === "enter") {
      event.preventDefault();
      enterWith(one("#token").value);
    } else if (form.matches("[data-apply]")) {
      event.preventDefault();
      // Keys walk the list that was asked for.
      one("main").focus({ preventScroll: true });
      apply(form);
    }
  }

  function onChange(event) {
    const form = event.target.closest("form[data-apply]");
    if (form && event.target.matches("select, input:not([type=search])")) apply(form);
  }

  // The page as the server shows it now takes the place of this one; what is typed, open or selected stays.
  async function refresh({ isAsked = false } = {}) {
    const asked = shownAt;
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
    if (!answer || !answer.ok) return false;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    // Another list was asked for meanwhile: its answer may be here already.
    if (asked !== shownAt) return true;
    const fresh = page.querySelector("main");
    const main = one("main");
    if (fresh?.dataset.reload) main.dataset.reload = fresh.dataset.reload;
    if (!fresh || fresh.innerHTML === main.dataset.shown) return true;
    const active = document.activeElement;
    if (!isAsked && main.contains(active) && isTyping(active)) return true;
    main.dataset.shown = fresh.innerHTML;
    const path = main.contains(active) ? pathOf(active, main) : null;
    const open = new Set(all("details").flatMap((details, number) => (details.open ? [number] : [])));
    main.replaceChildren(...fresh.childNodes);
    document.title = page.title;
    all("details").forEach((details, number) => (details.open = details.open || open.has(number)));
    if (path) elementAt(path, main)?.focus({ preventScroll: true });
    if (current >= 0 && lines()[current]) lines()[current].dataset.current = "";
    return true;
  }

  function pathOf(element, root) {
    const path = [];
    for (let node = element; node !== root; node = node.parentElement) {
      path.unshift([...node.parentElement.children].indexOf(node));
    }
    return path;
  }

  const elementAt = (path, root) => path.reduce((node, number) => node?.children[number], root);

  // The server says how often a page is loaded again; the stream reconnects by itself after a loss.
  function listen() {
    const main = one("main[data-events]");
    if (!main || typeof EventSource === "undefined") return;
    let isWanted = false;
    let isBusy = false;
    const stream = new EventSource(main.dataset.events);
    const soon = async () => {
      isWanted = true;
      if (isBusy) return;
      isBusy = true;
      while (isWanted) {
        isWanted = false;
        await refresh();
        await new Promise((resolve) => setTimeout(resolve, 250));
      }
      isBusy = false;
    };
    stream.addEventListener("changed", soon);
    stream.addEventListener("error", () => {
      document.body.dataset.stream = "lost";
    });
    stream.addEventListener("open", () => {
      if (document.body.dataset.stream === "lost") soon();
      document.body.dataset.stream = "open";
    });
    addEventListener("pagehide", () => stream.close());
  }

  // A page that says after how many milliseconds it is to be loaded again.
  async function reload() {
    const isLoaded = document.hidden || (await refresh());
    document.body.dataset.stream = isLoaded ? "open" : "lost";
    setTimeout(reload, Number(one("main").dataset.reload));
  }

  // What an address names is open, and all that it is in.
  async function unfold() {
    const name = location.hash.slice(1);
    if (one("#opened") && (await openPart(name))) return;
    const target = document.getElementById(name);
    for (let part = target?.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
    target?.scrollIntoView();
    if (name === "q") target?.focus();
  }

  // A file's cases and trajectories are compressed in it. The one that the address names takes the place of the lists;
  // their texts were escaped when it was written, and its policy lets no script of theirs run. Back in the lists, the
  // line of what was open is selected; the result says so.
  async function openPart(name) {
    const part = /^run-\d+-(?:case|trajectory)-\d+|$/.exec(name)[0];
    const packed = typeof DecompressionStream === "function" && one(`template[data-places~="${part}"]`);
    const html = packed ? await unpacked(packed, part) : "";
    const opened = one("#opened");
    const before = opened.dataset.part ?? "";
    if (`#${name}` !== (location.hash || "#") || before === (packed ? part : "")) return false;
    opened.innerHTML = html;
    opened.dataset.part = packed ? part : "";
    for (const section of all("main > section")) section.hidden = (section === opened) !== Boolean(packed);
    current = packed ? -1 : lines().findIndex((line) => line.querySelector(`a[href="#${before}"]`));
    if (packed) scrollTo({ top: 0, behavior: "instant" });
    if (packed) opened.focus({ preventScroll: true });
    if (current < 0 || name === "q") return false;
    lines()[current].scrollIntoView({ block: "center", behavior: "instant" });
    select(current);
    return true;
  }

  async function unpacked(packed, part) {
    const bytes = Uint8Array.from(atob(packed.content.textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const parts = (await new Response(stream).text()).split("\0");
    return parts[packed.dataset.places.split(" ").indexOf(part)];
  }

  // The rows of a file's lists that have these words.
  function onInput(event) {
    if (!event.target.matches("[data-filter]")) return;
    const words = event.target.value.toLowerCase();
    for (const row of all(".matrix tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(words);
    one("#none").textContent = one(".matrix tbody tr:not([hidden])") ? "" : "No case has this. A shorter text finds more.";
    current = -1;
  }

  // Clocks of what waits: whole seconds since a time, by the clock of this machine, which served the page.
  function tick() {
    for (const clock of all("[data-since]")) {
      clock.textContent = `${Math.max(0, Math.floor((Date.now() - Number(clock.dataset.since)) / 1000))} s`;
    }
  }

  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
  document.addEventListener("submit", onSubmit);
  document.addEventListener("change", onChange);
  document.addEventListener("input", onInput);
  addEventListener("popstate", show);
  addEventListener("hashchange", unfold);
  if (typeof DecompressionStream === "function") one("#unpacked")?.remove();
  unfold();
  enter();
  listen();
  if (one("main[data-reload]")) setTimeout(reload, 1000);
  setInterval(tick, 1000);
})();

"use strict";
// Forms that are sent as they change, sliders next to numbers, announcements. htmx sends the requests.
(() => {
  const form = document.querySelector("form.question");
  const answer = document.getElementById("result");
  const TYPING_MS = 400;
  const SLIDING_MS = 60;

  // A chosen theme stays while pages change; the server reads it, so that no page flashes.
  document.addEventListener("theme-chosen", (event) => {
    document.cookie = `theme=${event.detail}; path=/; SameSite=Strict; max-age=31536000`;
  });

  // A figure that goes takes its listeners along; new ones are drawn when they come near.
  document.addEventListener("htmx:beforeSwap", (event) => {
    event.detail.target.querySelectorAll(".js-plotly-plot").forEach((plot) => Plotly.purge(plot));
  });
  document.addEventListener("htmx:afterSettle", () => document.dispatchEvent(new Event("figures-changed")));

  // The same announcement is not made twice, and what was typed since the question was sent stays.
  let sent = new FormData(form ?? undefined);
  const isTyped = (field) => String(new FormData(form).getAll(field.name)) !== String(sent.getAll(field.name));
  document.addEventListener("htmx:oobBeforeSwap", (event) => {
    const { target, fragment } = event.detail;
    if ([...target.querySelectorAll("[name]")].some(isTyped)) event.detail.shouldSwap = false;
    if (target.id === "announcement" && fragment.textContent.trim() === target.textContent.trim()) event.detail.shouldSwap = false;
  });

  // Fields left empty are not part of the address.
  document.addEventListener("htmx:configRequest", (event) => {
    const fields = event.detail.formData;
    const filled = [...fields.entries()].filter(([, value]) => value !== "");
    for (const name of new Set(fields.keys())) fields.delete(name);
    for (const [name, value] of filled) fields.append(name, value);
  });
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.elt === form) {
      answer.setAttribute("aria-busy", "true");
      sent = new FormData(form);
    }
    // A page that is not in sight does not ask how far its runs are.
    if (document.hidden && event.detail.elt.id === "live") event.preventDefault();
  });
  document.addEventListener("htmx:afterRequest", () => answer.removeAttribute("aria-busy"));
  const lost = () => {
    document.getElementById("announcement").textContent = "The server does not answer. Is it still running?";
    document.body.classList.add("lost");
  };
  document.addEventListener("htmx:sendError", lost);
  document.addEventListener("htmx:responseError", lost);
  document.addEventListener("htmx:beforeOnLoad", () => document.body.classList.remove("lost"));

  // Without runs there is no form yet; it comes with the first.
  document.addEventListener("answer-changed", () => { if (!form) location.reload(); });

  // Scenarios: named questions with what was answered, kept in this browser. Their addresses can be shared.
  const kept = document.querySelector(".scenarios");
  if (kept) {
    const KEY = "equipoise-scenarios";
    const name = document.getElementById("scenario");
    const read = () => { try { return JSON.parse(localStorage.getItem(KEY)) ?? []; } catch { return []; } };
    const cell = (tag, ...inside) => { const made = document.createElement(tag); made.append(...inside); return made; };
    const labels = [...kept.querySelectorAll("thead th")].slice(1).map((each) => each.textContent);
    const labelled = (made, label) => { made.dataset.label = label; return made; };
    const show = () => {
      const rows = read().map((each) => {
        const link = cell("a", each.name);
        link.href = each.address;
        const remove = cell("button", "Remove");
        remove.type = "button";
        remove.setAttribute("aria-label", `Remove ${each.name}`);
        remove.addEventListener("click", () => write(read().filter((one) => one.name !== each.name)));
        return cell("tr", cell("th", link), ...[each.answer, each.chance, each.evidence].map((text, place) => labelled(cell("td", text), labels[place])), cell("td", remove));
      });
      kept.querySelector("tbody").replaceChildren(...rows);
      kept.querySelector(".scroll").hidden = rows.length === 0;
    };
    const write = (scenarios) => { localStorage.setItem(KEY, JSON.stringify(scenarios)); show(); };
    const tile = (start) => {
      const found = [...answer.querySelectorAll(".tile")].find((each) => each.querySelector(".label").textContent.startsWith(start));
      return found?.querySelector(".value").textContent ?? "";
    };
    const keep = () => {
      const called = name.value.trim();
      if (!called) { name.focus(); return; }
      const made = {
        name: called,
        address: location.pathname + location.search,
        answer: answer.querySelector("h1")?.textContent ?? "",
        chance: tile("Chance"),
        evidence: tile("Evidence"),
      };
      write([...read().filter((each) => each.name !== called), made]);
      name.value = "";
    };
    document.getElementById("keep").addEventListener("click", keep);
    name.addEventListener("keydown", (event) => { if (event.key === "Enter") keep(); });
    kept.hidden = false;
    show();
  }

  if (!form) return;
  let timer = 0;
  // Where every change is answered, the first after a question that was sent or opened is a step of the
  // history, so that Back returns to that question; those that follow take its place.
  const isTransient = form.hasAttribute("hx-replace-url");
  let isKept = true;
  const step = (isSent) => {
    if (!isTransient) return;
    const isChanged = String([...new FormData(form)]) !== String([...sent]);
    const isStep = isKept && isChanged;
    form.removeAttribute(isStep ? "hx-replace-url" : "hx-push-url");
    form.setAttribute(isStep ? "hx-push-url" : "hx-replace-url", "true");
    isKept = isSent || (isKept && !isChanged);
  };
  const ask = (delay) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      step(false);
      htmx.trigger(form, "question-changed");
    }, delay);
  };
  form.addEventListener("submit", () => {
    clearTimeout(timer);
    step(true);
  }, true);

  // A field with suggestions is a combobox: arrow keys go through the names that hold what was typed, Enter
  // takes one, Escape closes the list. Without scripts the browser's own list does.
  const MOST_SHOWN = 60;
  const list = document.createElement("ul");
  list.id = "suggestions";
  list.className = "suggestions";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Suggestions");
  list.hidden = true;
  document.body.append(list);
  let combo = null;
  const nameOf = (option) => option.value.toLowerCase();
  // A list that is opened on a whole name offers all others; one that is typed in, those that hold the name.
  const matching = (field, isTyped) => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const options = [...document.getElementById(field.dataset.list).options];
    if (!isTyped && options.some((each) => nameOf(each) === field.value.trim().toLowerCase())) return options;
    return options.filter((each) => words.every((word) => nameOf(each).includes(word) || each.label.toLowerCase().includes(word)));
  };
  const mark = (chosen) => {
    for (const each of list.children) each.setAttribute("aria-selected", String(each === chosen));
    if (chosen) combo.setAttribute("aria-activedescendant", chosen.id);
    else combo.removeAttribute("aria-activedescendant");
    chosen?.scrollIntoView({ block: "nearest" });
  };
  const place = () => {
    const box = combo.getBoundingClientRect();
    list.style.left = `${box.left + scrollX}px`;
    list.style.top = `${box.bottom + scrollY + 2}px`;
    list.style.minWidth = `${box.width}px`;
  };
  const close = () => {
    list.hidden = true;
    combo?.setAttribute("aria-expanded", "false");
    combo?.removeAttribute("aria-activedescendant");
  };
  const open = (field, isTyped = false) => {
    combo = field;
    const found = matching(field, isTyped).slice(0, MOST_SHOWN);
    list.replaceChildren(...found.map((each, place) => {
      const item = document.createElement("li");
      item.id = `suggestion-${place}`;
      item.setAttribute("role", "option");
      item.dataset.value = each.value;
      const name = document.createElement("span");
      name.textContent = each.label || each.value;
      const value = document.createElement("code");
      value.textContent = each.value;
      item.append(name, value);
      return item;
    }));
    if (found.length === 0) { close(); return; }
    list.hidden = false;
    field.setAttribute("aria-expanded", "true");
    place();
    mark([...list.children].find((each) => each.dataset.value === field.value) ?? null);
  };
  const take = (item) => {
    combo.value = item.dataset.value;
    close();
    ask(0);
  };
  const readyCombo = (field) => {
    field.dataset.list = field.getAttribute("list");
    field.removeAttribute("list");
    for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-expanded", "false"], ["aria-controls", list.id]]) field.setAttribute(name, value);
  };
  const readyCombos = () => form.querySelectorAll("input[list]").forEach(readyCombo);
  readyCombos();
  document.addEventListener("htmx:afterSettle", readyCombos);
  const isCombo = (field) => field.dataset?.list !== undefined;
  form.addEventListener("click", (event) => { if (isCombo(event.target) && list.hidden) open(event.target); });
  form.addEventListener("focusout", (event) => { if (event.target === combo) close(); });
  list.addEventListener("pointerdown", (event) => event.preventDefault());
  list.addEventListener("click", (event) => { const item = event.target.closest("li"); if (item) take(item); });
  form.addEventListener("keydown", (event) => {
    if (!isCombo(event.target)) return;
    const { key } = event;
    const isOpen = !list.hidden && combo === event.target;
    if (key === "Escape" && isOpen) { close(); event.preventDefault(); return; }
    if (key === "Tab" && isOpen) { close(); return; }
    const chosen = isOpen ? list.querySelector('[aria-selected="true"]') : null;
    if (key === "Enter") {
      // Enter takes what is marked; else it asks about what was typed, as in any other field.
      event.preventDefault();
      if (chosen) { take(chosen); return; }
      close();
      form.requestSubmit();
      return;
    }
    if (key !== "ArrowDown" && key !== "ArrowUp") return;
    event.preventDefault();
    if (!isOpen) { open(event.target); return; }
    const items = [...list.children];
    const at = items.indexOf(chosen);
    mark(items.at(key === "ArrowDown" ? (at + 1) % items.length : Math.max(at, 0) - 1));
  });

  // The number that people mean by 64, 10k, 1T or, where times are hours, 90min and 7d.
  const MULTIPLES = { "": 1, k: 1e3, m: 1e6, g: 1e9, b: 1e9, t: 1e12, p: 1e15 };
  const HOURS = { s: 1 / 3600, min: 1 / 60, h: 1, d: 24, w: 168 };
  const amount = (text) => {
    const found = /^([\d.]+(?:e[+-]?\d+)?)\s*([a-z]*)$/i.exec(text.trim().replaceAll(/[,_]/g, ""));
    const unit = found?.[2].toLowerCase();
    return found ? Number(found[1]) * (MULTIPLES[unit] ?? HOURS[unit] ?? NaN) : NaN;
  };
  const scales = {
    linear: { to: Number, from: Number },
    doublings: { to: (value) => Math.log2(value), from: (place) => Number((2 ** place).toPrecision(Number.isInteger(place) ? 6 : 2)) },
  };
  const ready = (slider) => {
    const number = document.getElementById(slider.dataset.for);
    const scale = scales[slider.dataset.scale];
    const announce = () => slider.setAttribute("aria-valuetext", number.value || number.placeholder);
    slider.min = scale.to(slider.dataset.low);
    slider.max = scale.to(slider.dataset.high);
    slider.hidden = false;
    const held = amount(number.value);
    slider.value = held > 0 ? scale.to(held) : slider.dataset.rest ? scale.to(slider.dataset.rest) : slider.min;
    announce();
    slider.addEventListener("input", () => {
      number.value = scale.from(Number(slider.value));
      announce();
      ask(SLIDING_MS);
    });
    number.addEventListener("input", () => {
      const typed = amount(number.value);
      if (typed > 0) slider.value = scale.to(typed);
      announce();
    });
  };
  form.querySelectorAll(".slider").forEach(ready);

  // On a phone seldom used fields make room for the answer, unless one of them is set.
  const isNarrow = matchMedia("(max-width: 40rem)").matches;
  for (const more of form.querySelectorAll("details.more")) {
    const names = [...more.querySelectorAll("[name]")].map((field) => field.name);
    const fields = new URLSearchParams(location.search);
    if (isNarrow && !names.some((name) => fields.has(name))) more.open = false;
  }

  // Fields that depend on a choice are cleared, except for values that the new choice has too.
  const clear = (select) => {
    const held = (select.selectedOptions[0]?.dataset.holds ?? "").split(" ");
    for (const name of (select.dataset.clears ?? "").split(" ").filter(Boolean)) {
      for (const each of form.querySelectorAll(`[name="${name}"]`)) {
        if (held.includes(each.value)) continue;
        if (each.type === "checkbox") each.checked = false;
        else each.value = "";
      }
    }
  };
  // With as many chosen as may be, no other is offered.
  const limit = (group) => {
    const boxes = [...group.querySelectorAll("[type=checkbox]")];
    const isFull = boxes.filter((each) => each.checked).length >= Number(group.dataset.most);
    for (const each of boxes) each.disabled = isFull && !each.checked;
  };
  form.addEventListener("input", (event) => {
    if (event.target.matches(".slider")) return;
    if (isCombo(event.target)) open(event.target, true);
    if (event.target.matches("select")) clear(event.target);
    form.querySelectorAll("[data-most]").forEach(limit);
    if (isPartOfName(event.target)) {
      clearTimeout(timer);
      return;
    }
    ask(event.target.matches("select, [type=checkbox], [type=radio]") ? 0 : TYPING_MS);
  });
  // A name is asked about when it is one of those offered, or when the reader leaves it.
  const isPartOfName = (field) =>
    isCombo(field) && field.value !== "" && ![...document.getElementById(field.dataset.list).options].some((each) => each.value === field.value);
  form.addEventListener("change", (event) => { if (isPartOfName(event.target)) ask(0); });
  // A run has written more than the page shows; a reader who works in the answer is not disturbed.
  const WORKING_MS = 20000;
  let worked = -Infinity;
  for (const kind of ["pointerdown", "keydown", "focusin"]) {
    answer.addEventListener(kind, () => { worked = performance.now(); });
  }
  const isWorking = () => {
    const active = document.activeElement;
    const selected = getSelection();
    if (!selected.isCollapsed && answer.contains(selected.anchorNode)) return true;
    if (form.contains(active) && active.matches("select")) return true;
    return answer.contains(active) && active !== answer && performance.now() - worked < WORKING_MS;
  };
  document.addEventListener("answer-changed", () => { if (!isWorking()) ask(0); });
})();

// Before anything is painted: light or dark, if somebody chose.
"use strict";
const chosen = localStorage.getItem("savegame-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

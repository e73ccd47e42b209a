// Before anything is painted: light or dark, if the user chose one.
"use strict";
const chosen = localStorage.getItem("savegame-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

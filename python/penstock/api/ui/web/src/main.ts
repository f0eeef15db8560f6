import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/controls.css";

import { mount } from "svelte";

import App from "./App.svelte";

const target = document.getElementById("app");
if (target === null) throw new Error("index.html has no element `app`");
mount(App, { target });

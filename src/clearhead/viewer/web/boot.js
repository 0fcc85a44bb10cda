// The entry of the served page. The offline file has an entry of its own, with a packed source.
import { startApp } from "./main.js";
import { servedSource } from "./served.js";

startApp(servedSource());

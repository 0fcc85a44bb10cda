// Numbers out of an offline page, as its own browser code computes them: node numbers.mjs PAGE, with a
// list of [method, ...arguments] in JSON on standard input. Float arrays come back as lists, null for
// what is no number; -Infinity as "hidden".
import { readFileSync } from "node:fs";
import { packedSource } from "../../src/clearhead/viewer/web/packed.js";

const page = readFileSync(process.argv[2], "utf-8");
const textOf = (id) => page.match(new RegExp(`<script type="[a-z/]+" id="${id}">([^<]*)</script>`))[1];
const source = packedSource(JSON.parse(textOf("said")), (n) => textOf(`blob-${n}`));
const plain = (key, value) => {
  if (ArrayBuffer.isView(value)) return Array.from(value, (x) => (x === -Infinity ? "hidden" : x));
  return value;
};
const answers = [];
for (const [method, ...given] of JSON.parse(readFileSync(0, "utf-8"))) {
  try { answers.push(await source[method](...given)); } catch (error) { answers.push({ error: error.message }); }
}
process.stdout.write(JSON.stringify(answers, plain));

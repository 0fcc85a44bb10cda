import assert from "node:assert/strict";
import { test } from "node:test";
import { csvText } from "../../src/clearhead/viewer/web/csv.js";
import { escapeXml } from "../../src/clearhead/viewer/web/picture.js";

test("cells are quoted where they must be, and never formulas", () => {
  assert.equal(csvText([["a,b", 'say "x"', "two\nlines", 0.5, NaN, null]]), '"a,b","say ""x""","two\nlines",0.5,,\r\n');
  assert.equal(csvText([["=1+1", "@x", "-a", "+a", "\t"]]), "'=1+1,'@x,'-a,'+a,'\t\r\n");
  assert.equal(csvText([[-0.5, 1e-9]]), "-0.5,1e-9\r\n");
});

test("tokens in a drawing are data", () => {
  assert.equal(escapeXml('</text><script>"&'), "&lt;/text&gt;&lt;script&gt;&quot;&amp;");
  assert.equal(escapeXml("a\u0000b\ud800c🐈"), "a\ufffdb\ufffdc🐈");
});

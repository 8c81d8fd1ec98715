/** Colours of code: a small tokenizer for the common languages. */

import { make } from "./dom.js";

const END = "(?![\\s\\S])";
const STRINGS = [`"(?:\\\\.|[^"\\\\\\n])*"?`, `'(?:\\\\.|[^'\\\\\\n])*'?`];
const TEMPLATE = "`(?:\\\\[\\s\\S]|[^`\\\\])*`?";
const TRIPLE = [`"""[\\s\\S]*?(?:"""|${END})`, `'''[\\s\\S]*?(?:'''|${END})`];
const SLASHES = ["//[^\\n]*", `/\\*[\\s\\S]*?(?:\\*/|${END})`];
const HASH = ["#[^\\n]*"];
const NUMBER = "(?<![\\w.])(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d[\\d_]*)?(?:[eE][+-]?\\d+)?)[\\w%]*";
const WORD = "[\\p{L}_$][\\p{L}\\p{N}_$]*";

const C_WORDS =
  "if else for while do switch case default break continue return goto const static void int char float double " +
  "long short unsigned signed bool struct enum union typedef sizeof true false null nullptr new delete class " +
  "public private protected virtual override namespace using template typename this try catch throw throws " +
  "finally import package interface extends implements abstract final auto extern inline operator var let " +
  "function async await yield of in export from typeof instanceof undefined type readonly declare keyof as is fn " +
  "mut pub impl trait mod use crate self match loop where move ref dyn unsafe func go chan defer range select map " +
  "string byte error nil fallthrough val fun object when data companion init guard extension protocol foreach " +
  "internal get set out params lock echo";
const PYTHON_WORDS =
  "and as assert async await break case class continue def del elif else except finally for from global if import " +
  "in is lambda match nonlocal not or pass raise return try while with yield None True False self";
const SHELL_WORDS =
  "if then elif else fi for while until do done case esac in function return local export readonly set unset " +
  "shift exit break continue source alias true false";
const SQL_WORDS =
  "select from where insert into values update set delete create table alter drop index view join left right " +
  "inner outer full cross on as and or not null is in like between exists group by order having limit offset " +
  "union all distinct case when then else end primary key foreign references default unique check with asc desc " +
  "begin commit rollback true false";
const RUBY_LUA_WORDS =
  "def end if elsif elseif else unless case when then while until for in do break next return yield begin rescue " +
  "ensure module class self nil true false and or not local function repeat require super attr_accessor puts " +
  "lambda raise";
const R_JULIA_WORDS =
  "function end if else elseif for while in return break next repeat TRUE FALSE NULL NA Inf NaN true false " +
  "nothing module using import export struct mutable let begin do try catch finally const where library abstract " +
  "type macro global local";

/** Parts of languages as sources of regular expressions; `key` is what stands before a colon, or a name of markup. */
const GRAMMARS = {
  plain: { number: undefined },
  c: { comment: SLASHES, string: [...STRINGS, TEMPLATE], words: C_WORDS },
  // Lifetimes begin with what ends no character.
  rust: { comment: SLASHES, string: [STRINGS[0], "'(?:\\\\.[^'\\n]*|[^'\\\\\\n])'"], words: C_WORDS },
  python: { comment: HASH, string: [...TRIPLE, ...STRINGS], words: PYTHON_WORDS },
  shell: { comment: ["(?<![^\\s])#[^\\n]*"], string: STRINGS, words: SHELL_WORDS },
  sql: { comment: ["--[^\\n]*", SLASHES[1]], string: STRINGS, words: SQL_WORDS, ignoresCase: true },
  ruby: { comment: [...HASH, "--[^\\n]*"], string: STRINGS, words: RUBY_LUA_WORDS },
  r: { comment: HASH, string: [TRIPLE[0], ...STRINGS], words: R_JULIA_WORDS },
  haskell: {
    comment: ["--[^\\n]*"],
    string: [STRINGS[0]],
    words: "module import where let in case of if then else do data type class instance deriving newtype",
  },
  lisp: {
    comment: [";[^\\n]*"],
    string: [STRINGS[0]],
    words: "define defun let lambda if cond else begin set quote list",
  },
  json: { string: [STRINGS[0]], key: ['"(?:\\\\.|[^"\\\\\\n])*"(?=\\s?:)'], words: "true false null" },
  yaml: {
    comment: ["(?<![^\\s])#[^\\n]*"],
    string: STRINGS,
    key: ["[\\w.-]+(?= ?[:=])"],
    words: "true false null yes no on off",
  },
  markup: {
    comment: [`<!--[\\s\\S]*?(?:-->|${END})`],
    string: ['(?<==)"[^"]*"?', "(?<==)'[^']*'?"],
    key: ["</?[A-Za-z][\\w:.-]*", "/?>"],
  },
  css: {
    comment: [SLASHES[1]],
    string: STRINGS,
    key: ["[\\w-]+(?=:)", "@[\\w-]+"],
    number: "#[\\da-fA-F]{3,8}(?!\\w)|(?<![\\w-])\\d[\\d.]*[\\w%]*",
  },
  diff: { string: ["(?<![^\\n])\\+[^\\n]*"], comment: ["(?<![^\\n])-[^\\n]*"], key: ["(?<![^\\n])@@[^\\n]*"] },
};
const LANGUAGES = {
  c:
    "c h cpp cc hpp c++ cs csharp java js jsx javascript mjs ts tsx typescript go golang kotlin kt swift php scala " +
    "dart groovy zig glsl cuda objc json5",
  rust: "rust rs",
  python: "python py python3 pyi pycon ipython",
  shell: "sh bash shell zsh console fish dockerfile makefile make powershell ps1",
  sql: "sql sqlite mysql postgresql",
  ruby: "ruby rb lua perl pl elixir",
  r: "r julia jl",
  haskell: "haskell hs elm ocaml",
  lisp: "lisp scheme clojure elisp asm ini",
  json: "json jsonc jsonl",
  yaml: "yaml yml toml properties env",
  markup: "html xml svg vue xhtml",
  css: "css scss less",
  diff: "diff patch",
};
const GRAMMAR_OF = new Map(
  Object.entries(LANGUAGES).flatMap(([grammar, names]) => names.split(" ").map((name) => [name, grammar])),
);
const KINDS = ["comment", "key", "string", "number", "word"];
const lexers = new Map();
const LONGEST = 500_000;
const LINES_OF_BLOCK = 50;

function lexerOf(name) {
  if (!lexers.has(name)) {
    const grammar = { number: NUMBER, word: WORD, ...GRAMMARS[name] };
    const groups = KINDS.filter((kind) => grammar[kind]).map(
      (kind) => `(?<${kind}>${[grammar[kind]].flat().join("|")})`,
    );
    const pattern = new RegExp(`${groups.join("|")}|[\\s\\S]`, "uy");
    lexers.set(name, { pattern, words: new Set(grammar.words?.split(" ")), ignoresCase: grammar.ignoresCase });
  }
  return lexers.get(name);
}

/** Code in an element, coloured; as it grows, only its last tokens are made anew. */
export class ColouredCode {
  #lexer;
  #text = "";
  #tokens = [];

  /**
   * @param {HTMLElement} element
   * @param {string} language As it stands behind a fence.
   */
  constructor(element, language) {
    this.element = element;
    this.#lexer = lexerOf(GRAMMAR_OF.get(language.toLowerCase()) ?? "plain");
  }

  /** Show a text, which goes on where the one before ended. */
  update(text) {
    if (text === this.#text) return;
    const isLonger = text.startsWith(this.#text);
    this.#text = text;
    if (text.length > LONGEST) {
      this.element.textContent = text;
      return;
    }
    // What comes later changes the last token, or the kind of the word before it.
    const kept = isLonger ? Math.max(0, this.#tokens.length - 3) : 0;
    const from = this.#tokens[kept]?.at ?? 0;
    for (const { node } of this.#tokens.splice(kept)) node.remove();
    for (const block of [...this.element.children].slice(-2)) if (!block.hasChildNodes()) block.remove();
    if (!kept) this.element.replaceChildren();
    for (const token of tokens(this.#lexer, text, from)) this.#append(token, text.slice(token.at, token.end));
  }

  /** Append a token to the last block of lines: the browser lays out anew only the block that grows. */
  #append(token, text) {
    const before = this.#tokens.at(-1);
    const isFull = before?.endsLine && before.line >= LINES_OF_BLOCK;
    if (!before || isFull) this.element.append(make("div"));
    token.line = (before && !isFull ? before.line : 0) + token.endsLine;
    token.node = token.kind
      ? make("span", { className: `code-${token.kind}`, textContent: text })
      : document.createTextNode(text);
    this.element.lastChild.append(token.node);
    this.#tokens.push(token);
  }
}

/** Yield kind, begin and end of each token from an index on; plain ones of a line are one. */
function* tokens(lexer, text, from) {
  lexer.pattern.lastIndex = from;
  let plain = from;
  for (let at = from; at < text.length; at = lexer.pattern.lastIndex) {
    const kind = kindOf(lexer, lexer.pattern.exec(text), text);
    const end = lexer.pattern.lastIndex;
    if (kind && plain < at) yield { kind: "", at: plain, end: at, endsLine: false };
    if (kind) yield { kind, at, end, endsLine: false };
    else if (text[at] === "\n") yield { kind: "", at: plain, end, endsLine: true };
    if (kind || text[at] === "\n") plain = end;
  }
  if (plain < text.length) yield { kind: "", at: plain, end: text.length, endsLine: false };
}

function kindOf({ pattern, words, ignoresCase }, found, text) {
  const kind = KINDS.find((name) => found.groups[name] !== undefined);
  if (kind !== "word") return kind;
  if (words.has(ignoresCase ? found[0].toLowerCase() : found[0])) return "keyword";
  return words.size && text[pattern.lastIndex] === "(" ? "call" : undefined;
}

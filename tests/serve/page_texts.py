"""Texts of models for tests of the page: hostile ones, ordinary ones with all of markdown, and slow ones."""

HOSTILE = (
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload='window.pwned = 1'><circle r=9></svg>",
    "[click](javascript:window.pwned=1) [tab](java\tscript:window.pwned=1) <a href='javascript:window.pwned=1'>a</a>",
    "[data](data:text/html,<script>window.pwned=1</script>) [vb](vbscript:x) [file](file:///etc/passwd)",
    "![image](https://page.example/pixel.png) ![x](javascript:window.pwned=1) ![d](data:image/svg+xml,<svg/onload=x>)",
    '```js"><script>window.pwned = 1</script>\nalert(1)\n```',
    "```html\n</code></pre><script>window.pwned = 1</script>\n",
    "````\n```\n<script>window.pwned = 1</script>\n```\n</textarea><script>window.pwned = 1</script>",
    '[a](https://page.example/"onmouseover="window.pwned=1) [b](https://page.example "x\\" onfocus=window.pwned=1")',
    "<style>body { display: none } @import 'https://page.example/x.css';</style>",
    "<iframe srcdoc='<script>parent.pwned = 1</script>'></iframe><object data='x'></object><embed src='x'>",
    "<link rel=stylesheet href=https://page.example/x.css><meta http-equiv=refresh content='0;url=https://page.example'>",
    "<base href='https://page.example/'><form action='https://page.example'><input name=a><button>b</button></form>",
    "| <script>window.pwned=1</script> | b |\n|---|---|\n| <img src=x onerror=window.pwned=1> | `</td><script>` |",
    "- <details ontoggle=window.pwned=1 open>x\n  > <video src=x onerror=window.pwned=1>\n\n# <h1 onclick=x>",
    "&lt;script&gt;window.pwned=1&lt;/script&gt; &#60;img src=x onerror=window.pwned=1&#62;",
    "https://page.example/<script>window.pwned=1</script> http://[::1 javascript://page.example/%0aalert(1)",
    "<template><script>window.pwned=1</script></template><math><mtext></form><mglyph><style></math><img src onerror=x>",
    "$\\href{javascript:window.pwned=1}{x}$ <a style='position:fixed;inset:0' href=//page.example>a</a> \u202egpj.exe",
    "{{constructor.constructor('window.pwned=1')()}} ${window.pwned=1} <%= window.pwned=1 %> __proto__ constructor",
    "```constructor\nx\n```\n```__proto__\n<script>window.pwned = 1</script>\n```",
)

# Each with what it becomes.
MARKDOWN = {
    "a *b* **c** ***d*** ~~e~~ _f_ a_b_c": (
        "<p>a <em>b</em> <strong>c</strong> <em><strong>d</strong></em> <del>e</del> <em>f</em> a_b_c</p>"
    ),
    "2 * 3 * 4 and \\*no\\*": "<p>2 * 3 * 4 and *no*</p>",
    "`a*b*` and ``c`d``": "<p><code>a*b*</code> and <code>c`d</code></p>",
    "one\ntwo  \nthree": "<p>one\ntwo  <br>three</p>",
    "# A\n## B ##\ntext": "<h3>A</h3><h4>B</h4><p>text</p>",
    "a\n\n---\nb": "<p>a</p><hr><p>b</p>",
    "- a\n- b\n  - c\n- d": "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
    "1. a\n   - b\n2. c": "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "- a\n\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
    "> a\n> > b\n\nc": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>",
    "a &lt; b &amp; c": "<p>a &lt; b &amp; c</p>",
    "\\(a_1 * b_2\\)": "<p>\\(a_1 * b_2\\)</p>",
    "<b>x</b>": "<p>&lt;b&gt;x&lt;/b&gt;</p>",
    "[no](relative) [x]": "<p>[no](relative) [x]</p>",
}
LINKS = {
    "see https://a.example/b_(c). Next": ("https://a.example/b_(c)", "https://a.example/b_(c)"),
    "(https://a.example/b).": ("https://a.example/b", "https://a.example/b"),
    "[**b**](https://a.example/x_(y))": ("https://a.example/x_(y)", "b"),
    "![chart](https://a.example/c.png)": ("https://a.example/c.png", "chart"),
    "[m](mailto:a@b.example)": ("mailto:a@b.example", "m"),
}
# Each with the kinds of tokens in it.
CODE = {
    "python": (
        'def f(x):  # note\n    """Text\n    more"""\n    return f"{x}" + g(12)\n',
        "call comment keyword number string",
    ),
    "js": ("const a = `x ${b}`; // note\n/* long\n */ return f(0x1f, 'y');\n", "call comment keyword number string"),
    "json": ('{"a": [1, true, "b"]}\n', "key keyword number string"),
    "html": ('<a href="x">don\'t</a><!-- note -->\n', "comment key string"),
    "rust": ("fn f<'a>(x: &'a str) -> char { '\\n' }\n", "keyword string"),
    "sql": ("SELECT * FROM t -- note\nWHERE a = 'b';\n", "comment keyword string"),
    "diff": ("@@ -1 +1 @@\n-old\n+new\n", "comment key string"),
    "css": ("a { color: #fff; margin: 2px } /* note */\n", "comment key number"),
    "unknown": ("if (a) { return 'b' } // note\n", ""),
}
# What makes careless parsers slow.
SLOW = (
    "*a ",
    "**a _b ",
    "[",
    "[a](",
    "`a ``b ",
    "> ",
    "- ",
    "|",
    "#",
    "~~",
    "\\",
    "!",
    "<",
    "&",
    "http://",
    "  ",
    "*_",
)
SLOW_LINES = ("| a ", "- " * 3 + "\n", "> " * 9 + "\n", "1. a\n   ", "```\n~~~\n", "a | b\n---|---\n", "#" * 9 + " \n")

"""tinychat's commands, flags and slash commands, explained."""

from random import Random

from .phrasing import Templates, Turn, answers, as_typed, each, one_of, phrase

Table = dict[str, tuple[str, Templates]]
"""What each name does, and for what it is used."""


def _table(text: str) -> Table:
    """Return the rows of a text: ``name = does = goal / goal // next name``."""
    rows = (row.split(" = ") for row in each(text, " // "))
    return {name: (does, each(goals)) for name, does, goals in rows}


COMMANDS = _table("""
    chat = opens a chat with a model in the terminal = [chat|talk] with a model[| in the terminal] / [start|open] a
      [chat|conversation] //
    complete = writes one reply to the text of -p or of stdin = [get|write] [one|a single] reply / [answer|complete] one
      prompt / use [tinychat|it] in a [pipe|script] //
    convert = makes a model folder of a Hugging Face checkpoint = convert a [model|checkpoint] / [make|build] a model
      folder / quantize a [model|checkpoint] //
    pull = downloads a model from the Hugging Face hub and converts it to int4 = download a model / [get|fetch] a model
      from [the hub|Hugging Face] //
    models = lists the stored models = [list|see|show] [my|the stored|all|the] models / see which models [I have|are
      stored|are installed] //
    rm = removes stored models = [remove|delete] a [|stored ]model / [get rid of|uninstall] a model / free disk space //
    bench = measures how fast a model runs = [measure|test|see] [the speed|how fast it is|how fast a model runs] / run a
      benchmark //
    perplexity = measures how well a model predicts a file = [measure|compute] [the |]perplexity / [measure|test|check]
      the quality of a model / [measure|see] how well a model predicts [a text|a file] //
    batch = answers every line of a file with a model = [answer|process|work off] [a file of prompts|many prompts|a list
      of prompts|all lines of a file] / run many prompts[ at once|] //
    doctor = examines this machine and a model, and says what is wrong = [check|examine] my
      [machine|computer|installation|setup] / find out what is wrong / [check|see] [whether|if] everything is
      [fine|all right]""")
FLAGS = _table("""
    --temperature = sets the randomness; 0 takes the most likely token = [make replies more random|make the answers less
      random|change the randomness|make replies more creative|change the temperature] //
    --max-tokens = sets the most tokens of a reply = [limit the length of a reply|make replies shorter|get longer
      replies|set the maximum length] //
    --top-k = chooses among this many most likely tokens; 0 for all = choose only among the [ten|most] likely tokens //
    --top-p = chooses among the fewest tokens whose probabilities reach this sum = [use nucleus sampling|cut off at a
      sum of probabilities] //
    --min-p = drops tokens below this share of the most likely one's probability = [drop|leave out] unlikely tokens //
    --repeat-penalty = makes recent tokens less likely; 1 is off = [avoid|stop|prevent] [repetition|repeated
      words|loops] / make it repeat itself less //
    --seed = makes the choices repeatable = [get the same|always get the same|repeat the same] [answer|reply|reply
      twice] / make the replies [repeatable|reproducible] //
    --stop = ends a reply at this text; you may give it more than once = [end|stop] a reply at [a word|a text|a certain
      text] //
    --context = sets the size of the context = [set|change|enlarge] the [context|context size|size of the context] //
    --threads = sets the threads to compute with = use [more|fewer|all] [threads|cores] / set the number of
      [threads|cores] //
    --system = gives the model a standing instruction = [set|give] a [system prompt|standing instruction] //
    --kv = sets the type of the KV cache, f16 or f32 = [change|set] the [KV cache|type of the cache] //
    --json = writes one JSON object instead of the text = get [JSON|output as JSON|a JSON object] //
    --quant = sets the number format of convert: int4, int8 or f32 = [choose|set] the [quantization|number format] /
      convert to [int8|f32] //
    --group-size = sets how many weights share one scale: 32, 64 or 128 = [set|change] the [group size|size of the
      groups] //
    --overflow = says what happens when the context is full: stop, drop or shift = [choose|say|decide] what happens when
      the context is full / keep the chat going when the context is full //
    --continue = goes on with the last conversation = [continue|go on with|resume|pick up] [the|my] last
      [conversation|chat] //
    --resume = goes on with a saved conversation = [continue|go on with|resume|pick up] [a saved|an old|an earlier]
      [conversation|chat] //
    --plain = shows replies as raw text, without drawing markdown = [switch off|turn off|do without]
      [markdown|formatting] / see the raw text //
    --file = puts the text of a file before the prompt = [put|add] a file before the prompt / [summarize|read] a file
      with complete //
    --schema = makes replies JSON that fits a JSON schema = get replies that [fit|follow] a [schema|JSON schema] / force
      valid JSON //
    --grammar = makes replies follow a grammar = make replies follow a grammar / [force|set] a grammar //
    --logprobs = adds the probabilities of the tokens to JSON = [see|get] the probabilities of [the |]tokens //
    --version = shows the versions = see [the version|which version I have|the version of tinychat]""")
SLASH = _table("""
    /help = lists the commands of the chat = [see|list] the [slash commands|commands of the chat] //
    /exit = leaves the chat; so does Ctrl-D = [leave|quit|exit|end|close|stop|get out of] [the chat|the
      program|tinychat|this|this program|here|this conversation] / [say goodbye|finish|get away] //
    /clear = forgets the conversation and keeps the system prompt = [clear|forget|reset] the conversation / [start
      over|start again|begin anew] //
    /regen = writes the last reply again = [get another|write the last] reply[| again] / regenerate [the|a|your]
      [reply|answer] //
    /undo = takes back the last message and its reply = [take back|undo] [my|the] last message / [undo|take back] what I
      said //
    /system = sets the system prompt; /system none removes it = change the system prompt [here|in the chat|now] /
      [remove|see] the system prompt //
    /retry = writes the last reply again with other sampling = [retry|try again] with [another temperature|other
      sampling] / retry the reply //
    /edit = takes back the last message, so that you can change it = [edit|change|correct] [my|the] last message /
      [fix|correct] what I [wrote|typed] //
    /set = changes a setting, such as temperature = change [a setting|the settings|the temperature] in the chat / set [a
      value|an option] here //
    /show = shows the model, the system prompt and all settings = see [all|the] settings / [see|show] which model [is
      running|answers] //
    /multiline = lets Enter begin a new line = [write|type] [several|many|more] lines / begin a new line with Enter //
    /file = sends a file's text with the next message = [send|attach|show you|give you] a file //
    /paste = sends the clipboard's text with the next message = [send|use] the clipboard //
    /copy = copies the last reply to the clipboard = copy [your|the|the last] [reply|answer] //
    /export = writes the conversation to a file, .md or .json = [export|write down] [the|this] [chat|conversation] / get
      the conversation as a file //
    /save = saves the conversation under a name = [save|keep|store] [the|this] [chat|conversation] //
    /load = goes on with a saved conversation = load [a saved|an old] [chat|conversation] //
    /sessions = lists the saved conversations = [list|see|show|find] [my|the|all] [saved |old
      |][conversations|chats|sessions] //
    /fork = goes on in a copy of the conversation = [fork|copy|branch] [the|this] [chat|conversation] //
    /model = lets another model go on with the conversation = [change|switch|swap] the model / use another model in this
      chat //
    /context = shows what fills the context = see what [fills|is in] the context / look at the context //
    /tokens = shows the tokens of a text = see the tokens of a text / [count|see] [the |]tokens //
    /why = shows what else the last tokens could have been = see [other|likely] tokens / see why you [said|wrote|chose]
      that //
    /stats = shows context use and the rates of the last reply = see [how much context is used|the rates of the last
      reply|the statistics|how fast you are|how full the context is]""")

_WHAT = each("""What does {thing} do? / What is {thing}[| for| good for]? / [Explain|Describe|Tell me about] {thing}. /
    What's {thing}[| for]? / What does [the {sort} |]{thing} [mean|do]? / [What happens when I use|What is the
    [effect|point|purpose|job] of|What is meant by|What can I do with|What about] {thing}? /
    {thing}: what [is it|does it do|is that]? / [I don't get|I don't know|What to do with|I came across] {thing}[, what
    is it|, can you explain it|, help me]? / [How do I use|When do I need|What happens with|Why would I use] {thing}? /
    [Tell me|Can you tell me|Do you know|Can you explain] what {thing} [does|means|is for]?""")
_HOW = each("""How [can|do] I {goal}? / How [can|do|would|could] I {goal}[ with tinychat|]? /
    [I want to|I would like to|I'd like to|I need to] {goal}. / [Which|What] {sort} [do I use|should I use|do I
    need|lets me use] to {goal}? / What do I type to {goal}? / Is there a {sort} to {goal}? /
    [Tell me|Show me|Do you know|Can you tell me|Explain] how to {goal}? / Is it possible to {goal}? /
    {goal}: [how|how is that done|how does that work|which {sort}]? / [Help me to|I am trying to|Show me the way to|What
    if I want to] {goal}. / [Which|What] {sort} [would|will|can|could|does] {goal}?""")
# The names of each sort, and how often it is asked for.
_SORTS = {"command": (COMMANDS, 10), "flag": (FLAGS, 14), "slash command": (SLASH, 14)}
_ALL = answers(f"""
    [What|Which] commands [are there|does tinychat have|do you know|can I use]? /
    List [the|all] commands[ of tinychat|]. / [What|Which] commands does it have?
    = The commands are {", ".join(COMMANDS)}. tinychat --help lists them. //
    [What|Which] flags [are there|can I use|does tinychat have|do you know]? /
    List [the|all] [flags|options]. / [What|Which] options [are there|does tinychat have]?
    = The common flags are {", ".join([*FLAGS][:12])}. tinychat chat --help explains them. //
    [What|Which] slash commands [are there|can I use|do you know|does the chat have]? /
    List [the|all] slash commands. / [What|Which] commands [work|can I type|can I use] [in the chat|here]?
    = Some slash commands are {", ".join([*SLASH][:9])}. /help lists them all.""")


def turns(rng: Random) -> list[Turn]:
    """Return one question about how to use tinychat."""
    sort = rng.choices([*_SORTS], [weight for _, weight in _SORTS.values()])[0]
    table, _ = _SORTS[sort]
    if rng.random() < 0.06:
        asked, replies = _ALL[[*_SORTS].index(sort)]
        return [(as_typed(rng, one_of(rng, asked)), *replies)]
    name = rng.choice(list(table))
    does, goals = table[name]
    thing = f"tinychat {name}" if sort == "command" else name
    if rng.random() < 0.5:
        return [(as_typed(rng, one_of(rng, _WHAT, thing=thing, sort=sort)), f"{thing} {does}.")]
    question = one_of(rng, _HOW, goal=one_of(rng, goals), sort=sort)
    return [(as_typed(rng, question), phrase(rng, "[Type|Use] {thing}: it {does}.", thing=thing, does=does))]

"""tinychat's commands, flags and slash commands, explained."""

from random import Random

from demo.phrasing import Turn, as_typed, one_of, phrase

COMMANDS = {
    "chat": (
        "opens a chat with a model in the terminal",
        "[chat|talk] with a model[| in the terminal]|[start|open] a [chat|conversation]",
    ),
    "complete": (
        "writes one reply to the text of -p or of stdin",
        "[get|write] [one|a single] reply|[answer|complete] one prompt|use [tinychat|it] in a [pipe|script]",
    ),
    "convert": (
        "makes a model folder of a Hugging Face checkpoint",
        "convert a [model|checkpoint]|[make|build] a model folder|quantize a [model|checkpoint]",
    ),
    "pull": (
        "downloads a model from the Hugging Face hub and converts it to int4",
        "download a model|[get|fetch] a model from [the hub|Hugging Face]",
    ),
    "models": (
        "lists the stored models",
        "[list|see|show] [my|the stored|all|the] models|see which models [I have|are stored|are installed]",
    ),
    "rm": ("removes stored models", "[remove|delete] a [|stored ]model|[get rid of|uninstall] a model|free disk space"),
    "bench": (
        "measures how fast a model runs",
        "[measure|test|see] [the speed|how fast it is|how fast a model runs]|run a benchmark",
    ),
    "perplexity": (
        "measures how well a model predicts a file",
        "[measure|compute] [the |]perplexity|[measure|test|check] the quality of a model|[measure|see] how well a model predicts [a text|a file]",
    ),
    "doctor": (
        "examines this machine and a model, and says what is wrong",
        "[check|examine] my [machine|computer|installation|setup]|find out what is wrong|[check|see] [whether|if] everything is [fine|all right]",
    ),
}
FLAGS = {
    "--temperature": (
        "sets the randomness; 0 takes the most likely token",
        "[make replies more random|make the answers less random|change the randomness|make replies more creative|change the temperature]",
    ),
    "--max-tokens": (
        "sets the most tokens of a reply",
        "[limit the length of a reply|make replies shorter|get longer replies|set the maximum length]",
    ),
    "--top-k": (
        "chooses among this many most likely tokens; 0 for all",
        "choose only among the [ten|most] likely tokens",
    ),
    "--top-p": (
        "chooses among the fewest tokens whose probabilities reach this sum",
        "[use nucleus sampling|cut off at a sum of probabilities]",
    ),
    "--min-p": (
        "drops tokens below this share of the most likely one's probability",
        "[drop|leave out] unlikely tokens",
    ),
    "--repeat-penalty": (
        "makes recent tokens less likely; 1 is off",
        "[avoid|stop|prevent] [repetition|repeated words|loops]|make it repeat itself less",
    ),
    "--seed": (
        "makes the choices repeatable",
        "[get the same|always get the same|repeat the same] [answer|reply|reply twice]|make the replies [repeatable|reproducible]",
    ),
    "--stop": (
        "ends a reply at this text; you may give it more than once",
        "[end|stop] a reply at [a word|a text|a certain text]",
    ),
    "--context": (
        "sets the size of the context",
        "[set|change|enlarge] the [context|context size|size of the context]",
    ),
    "--threads": (
        "sets the threads to compute with",
        "use [more|fewer|all] [threads|cores]|set the number of [threads|cores]",
    ),
    "--system": ("gives the model a standing instruction", "[set|give] a [system prompt|standing instruction]"),
    "--kv": ("sets the type of the KV cache, f16 or f32", "[change|set] the [KV cache|type of the cache]"),
    "--json": ("writes one JSON object instead of the text", "get [JSON|output as JSON|a JSON object]"),
    "--quant": (
        "sets the number format of convert: int4, int8 or f32",
        "[choose|set] the [quantization|number format]|convert to [int8|f32]",
    ),
    "--group-size": (
        "sets how many weights share one scale: 32, 64 or 128",
        "[set|change] the [group size|size of the groups]",
    ),
    "--version": ("shows the versions", "see [the version|which version I have|the version of tinychat]"),
}
SLASH = {
    "/help": ("lists the commands of the chat", "[see|list] the [slash commands|commands of the chat]"),
    "/exit": ("leaves the chat; so does Ctrl-D", "[leave|quit|exit|end] [the chat|the program|tinychat|this]|get out of here"),
    "/clear": ("forgets the conversation and keeps the system prompt", "[clear|forget|reset] the conversation|[start over|start again|begin anew]"),
    "/regen": ("writes the last reply again", "[get another|write the last] reply[| again]|regenerate [the|a|your] [reply|answer]"),
    "/undo": ("takes back the last message and its reply", "[take back|undo] [my|the] last message|[undo|take back] what I said"),
    "/system": ("sets the system prompt; /system none removes it", "change the system prompt [here|in the chat|now]|[remove|see] the system prompt"),
    "/stats": ("shows context use and the rates of the last reply", "see [how much context is used|the rates of the last reply|the statistics|how fast you are|how full the context is]"),
}  # fmt: skip

_WHAT = (
    "What does {thing} do?",
    "What is {thing}[| for| good for]?",
    "[Explain|Describe|Tell me about] {thing}.",
    "What's {thing}[| for]?",
    "What does [the {sort} |]{thing} [mean|do]?",
    "[How do I use|When do I need|What happens with|Why would I use] {thing}?",
    "[Tell me|Can you tell me|Do you know|Can you explain] what {thing} [does|means|is for]?",
)
_HOW = (
    "How [can|do] I {goal}?",
    "How [can|do|would|could] I {goal}[ with tinychat|]?",
    "[I want to|I would like to|I'd like to|I need to] {goal}.",
    "[Which|What] {sort} [do I use|should I use|do I need|lets me use] to {goal}?",
    "What do I type to {goal}?",
    "Is there a {sort} to {goal}?",
    "[Tell me|Show me|Do you know|Can you tell me|Explain] how to {goal}?",
    "Is it possible to {goal}?",
)
_ALL = (
    ("[What|Which] commands [are there|does tinychat have|do you know|can I use]?", "List [the|all] commands[ of tinychat|].", "[What|Which] commands does it have?"),
    ("[What|Which] flags [are there|can I use|does tinychat have|do you know]?", "List [the|all] [flags|options].", "[What|Which] options [are there|does tinychat have]?"),
    ("[What|Which] slash commands [are there|can I use|do you know|does the chat have]?", "List [the|all] slash commands.", "[What|Which] commands [work|can I type|can I use] [in the chat|here]?"),
)  # fmt: skip


def turns(rng: Random) -> list[Turn]:
    """Return one question about how to use tinychat."""
    sort, table = rng.choice((("command", COMMANDS), ("flag", FLAGS), ("slash command", SLASH)))
    if rng.random() < 0.06:
        index = ("command", "flag", "slash command").index(sort)
        return [(as_typed(rng, one_of(rng, _ALL[index])), _listing(sort))]
    name = rng.choice(list(table))
    does, goals = table[name]
    thing = f"tinychat {name}" if sort == "command" else name
    if rng.random() < 0.5:
        return [(as_typed(rng, one_of(rng, _WHAT, thing=thing, sort=sort)), f"{thing} {does}.")]
    question = one_of(rng, _HOW, goal=phrase(rng, _one_goal(rng, goals)), sort=sort)
    return [(as_typed(rng, question), phrase(rng, "[Type|Use] {thing}: it {does}.", thing=thing, does=does))]


def _one_goal(rng: Random, goals: str) -> str:
    """Return one of the goals, which are separated by bars outside of brackets."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(goals):
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and not depth:
            parts.append(goals[start:index])
            start = index + 1
    return rng.choice([*parts, goals[start:]])


def _listing(sort: str) -> str:
    if sort == "command":
        return f"The commands are {', '.join(COMMANDS)}. tinychat --help lists them."
    if sort == "flag":
        return f"The common flags are {', '.join(list(FLAGS)[:12])}. tinychat chat --help explains them."
    return f"The slash commands are {', '.join(SLASH)}."

"""Write one reply with several shares of the processor, and tell the processor time that each took.

    .venv/bin/python scripts/measure_share.py [MODEL] [--tokens N] [--shares 100 75 50 25 10]

The time is that of all threads of the process, in all seconds from the prompt to the last token. Exit code 1 if a share
is exceeded by over 5 %, or a reply has other tokens.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tinychat
from tinychat.machine import available_cores

PROMPT = "Once upon a time there was a " + "very " * 200 + "old king."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--shares", type=int, nargs="+", default=[100, 75, 50, 25, 10])
    options = parser.parse_args()
    model = tinychat.load(options.model, draft=False)
    cores, is_kept, replies = available_cores(), True, set()
    print(f"{cores} cores\nshare  processor time of all cores  seconds  tokens")
    for share in options.shares:
        for _ in range(2 if share == options.shares[0] else 1):
            # The first reply loads what is not loaded yet.
            model.engine.take_share(share)
            began, used = time.monotonic(), time.process_time()
            reply = model.stream(PROMPT, max_tokens=options.tokens, temperature=0.0, ignore_eos=True).to_end()
            seconds, used = time.monotonic() - began, time.process_time() - used
        taken = 100 * used / (seconds * cores)
        replies.add(tuple(reply.token_ids))
        is_kept &= taken <= 1.05 * share
        print(f"{share:4} %  {taken:6.1f} %  {seconds:21.2f}  {len(reply.token_ids)}")
    print("the tokens are the same" if len(replies) == 1 else "THE TOKENS DIFFER")
    return 0 if is_kept and len(replies) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())

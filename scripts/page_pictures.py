"""Take the pictures of docs/page.md: the page of a running server, at a desk and on a phone in the dark.

    .venv/bin/tinychat serve smollm2-135m --temperature 0
    .venv/bin/python scripts/page_pictures.py http://127.0.0.1:8080

Needs Chromium and playwright: CONTRIBUTING.md says how to get them.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
QUESTIONS = (
    "Name three fruits, as a list.",
    "Write a haiku about the sea.",
    "Write a Python function that reverses a text.",
)
QUALITY = 70


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Take the pictures of docs/page.md.")
    parser.add_argument("address", help="of a running server, such as http://127.0.0.1:8080")
    address = parser.parse_args(given).address
    from playwright.sync_api import sync_playwright

    program = os.environ.get("TINYCHAT_TEST_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        desk = browser.new_page(viewport={"width": 1100, "height": 640})
        take(desk, address, QUESTIONS, DOCS / "page.webp")
        phone = browser.new_page(viewport={"width": 390, "height": 720}, device_scale_factor=2, color_scheme="dark")
        take(phone, address, QUESTIONS[:1], DOCS / "page-phone.webp")
        browser.close()


def take(page: Any, address: str, questions: tuple[str, ...], path: Path) -> None:
    """Ask questions, each in a conversation of its own, and take the picture of the last one."""
    page.goto(address)
    for question in questions:
        page.keyboard.press("Control+k")
        page.fill("#prompt", question)
        page.keyboard.press("Enter")
        page.wait_for_selector("#stop:visible")
        page.wait_for_selector("#send:visible", timeout=120_000)
    page.wait_for_timeout(500)
    # Playwright itself has no WebP.
    options = {"format": "webp", "quality": QUALITY}
    shot = page.context.new_cdp_session(page).send("Page.captureScreenshot", options)
    path.write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main()

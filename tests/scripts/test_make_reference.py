"""The reference is written of all public names, and a warning ends it."""

import subprocess
import sys
from pathlib import Path

import tinychat

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run(folder, before=""):
    """Run the script in a process of its own: it looks at every module, and changes annotations."""
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(SCRIPTS)!r})
import make_reference, tinychat
{before}
make_reference.write_reference(Path({str(folder)!r}))
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


def test_every_public_name_is_described(tmp_path):
    result = run(tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    page = (tmp_path / "tinychat.html").read_text(encoding="utf-8")
    names = {*tinychat.__all__} - {"errors"}
    assert [name for name in names if f'<section id="{name}"' not in page] == []
    errors = (tmp_path / "tinychat" / "errors.html").read_text(encoding="utf-8")
    assert '<section id="FieldError"' in errors


def test_an_annotation_that_cannot_be_read_is_an_error(tmp_path):
    result = run(tmp_path, "tinychat.Chat.say.__annotations__['text'] = 'Nowhere'")
    assert result.returncode == 1
    assert "Error parsing type annotation Nowhere for tinychat.Chat.say" in result.stderr

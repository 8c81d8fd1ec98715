"""Parts of ``compare_llama_cpp.py``: each engine in a process of its own, measured in turns."""

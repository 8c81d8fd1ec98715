"""Rewrites a parsed template so that it reports what Jinja would do unseen."""

from __future__ import annotations

from typing import cast

from jinja2 import TemplateSyntaxError, nodes
from jinja2.visitor import NodeTransformer

LOOP = "tinychat_loop"
"""Filter put around what a loop walks over."""

NEW = "tinychat_new"
"""Filter put around list, tuple and dict literals."""

CONCAT = "tinychat_concat"
"""Filter that replaces the operator ``~``, given the list of its operands."""

_REFUSED = (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)


def meter(template: nodes.Template) -> nodes.Template:
    """Wrap loops, literals, ``~`` and fixed text in filters that report them.

    Raises
    ------
    jinja2.TemplateSyntaxError
        The template loads other templates, or has a recursive loop.
    """
    refused = next(template.find_all(_REFUSED), None)
    if refused is not None:
        raise TemplateSyntaxError("other templates cannot be loaded", refused.lineno)
    return cast(nodes.Template, _Metering().visit(template))


class _Metering(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise TemplateSyntaxError("recursive loops are not supported", node.lineno)
        self.generic_visit(node)
        node.iter = _filtered(cast(nodes.Expr, node.iter), LOOP)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), CONCAT)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, NEW)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, NEW)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, NEW) if node.ctx == "load" else node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        # Fixed text is written unseen; a constant goes through the environment's `finalize`.
        return nodes.Const(node.data, lineno=node.lineno)


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

"""Settings of the documentation site; `make docs` builds it."""

import os
import re
import sys
from pathlib import Path

here = Path(__file__).parent
sys.path.insert(0, str(here))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib as mpl
from docutils.nodes import SkipNode, Text
from docutils.utils.math.latex2mathml import tex2mathml

import choral
import method_pages
import reference_pages

mpl.use("agg")

project, author, version = "choral", "The choral authors", choral.__version__
release, copyright = version, "The choral authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "tutorials/README.rst", "**/*.ipynb", "**sg_execution_times.rst"]
smartquotes_action = "qe"  # options such as --json keep their hyphens
html_math_renderer = "mathml"  # read by browsers, without a script from elsewhere
html_theme, html_title = "furo", "choral"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["llms.txt"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7fb2ee", "color-brand-content": "#7fb2ee"},
}
pygments_style, pygments_dark_style = "default", "monokai"
myst_enable_extensions = ["dollarmath", "deflist", "fieldlist"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache", "myst.xref_missing"] if os.environ.get("CHORAL_DRAFT") else ["config.cache"]
default_role = "code"
autodoc_member_order, autodoc_typehints = "bysource", "none"
napoleon_use_ivar = True
copybutton_exclude = ".linenos, .gp, .go"
sphinx_gallery_conf = {
    "examples_dirs": str(here / "tutorials"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"/t\d\d_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "matplotlib_animations": False,
    "min_reported_time": 1000,
    "plot_gallery": os.environ.get("CHORAL_GALLERY", "True"),
    "image_srcset": [],
    "reset_modules": ("gallery_look.look",),
}
if os.environ.get("CHORAL_GALLERY") == "False":  # tutorials are shown, not run
    sphinx_gallery_conf["filename_pattern"] = "(?!)"

method_pages.write(here / "methods")
reference_pages.write(here / "reference" / "generated")


def plain(app, what, name, obj, options, lines):
    lines[:] = [re.sub(r"\*\*(?=[\w(])", r"\\*\\*", line.replace("|", "\\|")) for line in lines]


def short_defaults(app, what, name, obj, options, signature, returns):
    """Show defaults that are values with many fields as `Training()`."""
    value = r"(=[A-Z]\w*)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))+\)"  # with two levels of brackets inside
    return re.sub(value, r"\1()", signature or "") or None, returns


def dashes(app, doctree):
    """Write a dash between a parameter and its meaning; `smartquotes` would also change options such as --json."""
    for node in doctree.findall(Text):
        if node.astext() == " -- ":
            node.parent.replace(node, Text(" \u2013 "))


def formula(self, node, inline=True):
    """Write a formula as MathML."""
    math = tex2mathml(node.astext(), as_block=not inline)
    self.body.append(math if inline else f'<div class="formula">{math}</div>')
    raise SkipNode


def setup(app):
    """Escape bars and powers in docstrings, which are no markup, and write formulas as MathML."""
    app.connect("autodoc-process-docstring", plain, priority=100)
    app.connect("autodoc-process-signature", short_defaults)
    app.connect("doctree-read", dashes)
    app.add_html_math_renderer("mathml", (formula, None), (lambda self, node: formula(self, node, inline=False), None))

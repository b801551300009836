"""The documentation site: `make site` builds it from the pages as they are in the repository.

The source folder is the project's, so that the links between docs/, FORMAT.md, conf/ and the notebooks, which
work in a clone, also work on the site. Notebooks are shown with their saved outputs and are not run.
"""

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

import sparklog  # noqa: E402 - from this tree

project = "sparklog"
author = "The sparklog authors"
version = release = sparklog.__version__
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/**/*.md",
    "notebooks/*.ipynb",
    "benchmarks/README.md",
    "FORMAT.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "changelog.d/README.md",
]
exclude_patterns = ["docs/_site"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "separated"
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Fields", "params_style"), "Concurrency", "Cost", "Source", "Shape"]
templates_path: list[str] = []

html_theme = "pydata_sphinx_theme"
html_title = f"sparklog {release}"
html_extra_path = ["_site"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": True,
    "show_toc_level": 2,
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"docs/index": []}
pygments_style = "default"

"""A notebook that is executed and written as HTML by nbconvert: cards with their styles."""

import pytest

from tests.planner.test_documents import Tags

CELLS = (
    "import planner\n"
    "result = planner.solve('llama3-8b', 'h100-x8', top=2, pins={'tp': 2, 'mbs': 1})\n"
    "result",
    "result.best",
    "result.to_pandas()[['plan_id', 'step_time_s']]",
    "result.best.step_figure()",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Your element with mimetype")
def test_nbconvert_shows_cards_with_their_styles() -> None:
    """`pip install nbclient nbconvert ipykernel` runs it; no extra of ours needs them."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    nbconvert = pytest.importorskip("nbconvert")
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    html, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    assert Tags(html).found.count("section") == 2
    assert html.count('class="plan-card"') == 2
    assert html.count(".plan-card {") >= 2
    assert "prefers-color-scheme: dark" in html
    assert Tags(html).found.count("table") >= 2
    outputs = [output for cell in notebook.cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("application/vnd.plotly.v1+json" in output.get("data", {}) for output in outputs)

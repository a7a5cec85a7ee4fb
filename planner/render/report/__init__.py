"""Reports: figures and words about a sweep, as one HTML file or as images.

    points.py     the rows of a sweep as columns, its axes, and what is compared
    quantities.py units that people read: GiB, ms, $, MWh
    effects.py    what each axis buys: equal points that differ in it alone
    bins.py       values of an axis as places
    sweep_lead.py three sentences and the axes of one chart, with which a report begins
    lead_text.py  the same as text
    answers.py    the answer in words
    sweep_charts.py   which charts a sweep gets; each is a module of `planner.render.charts`
    theme.py      colours, light and dark
    page.py       the HTML file; templates/ holds its text, style and script
    images.py     PNG and SVG through kaleido
    review.py     a result as a design review
    files.py      `planner report`

The chart functions take `SweepPoints` (or rows) and return a `Chart`; the same ones serve reports,
notebooks (`chart.figure.show()`) and pages of a service. Only the chart modules import Plotly.
"""

"""Reports: figures and words about a sweep, as one HTML file or as images.

    points.py     the rows of a sweep as columns, its axes, and what is compared
    quantities.py units that people read: GiB, ms, $, MWh
    effects.py    what each axis buys: equal points that differ in it alone
    answers.py    the answer in words
    charts.py     a chart: Plotly figure, what it says, its data
    axis_charts.py, map_charts.py, front_charts.py, roofline_charts.py, scaling_charts.py,
    elasticity_charts.py, failure_charts.py      one function a chart
    theme.py      colours, light and dark
    page.py       the HTML file; templates/ holds its text, style and script
    images.py     PNG and SVG through kaleido
    command.py    `planner report`

The chart functions take `SweepPoints` (or rows) and return a `Chart`; the same ones serve reports,
notebooks (`chart.figure.show()`) and pages of a service. Only the chart modules import Plotly.
"""

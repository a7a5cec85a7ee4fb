"""What one plan shows: figures as data, every number with its formula, its values and its source.

    from planner.render.plan_view.data import plan_view
    from planner.render.plan_view.page import plan_html

`plan_view(model, cluster, problem, plan)` returns plain data, `plan_html` one HTML file of it. The
cost model computes everything; here it is put into words, tables and figures. No file is opened.
"""

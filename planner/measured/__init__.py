"""What users time on their own machines, and the rates of the model that follow from it.

`nccl_tests` reads the output of nccl-tests, `results` the file of the script that `planner
measure` writes. `link_fit` and `device_fit` turn times into the values of a calibration.
"""

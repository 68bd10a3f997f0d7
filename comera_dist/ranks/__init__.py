"""Rank adaptation: all processes decide alike which ranks a run keeps, and the cores are really cut.

Read the files in this order. What there is to decide about: `layout` (all gates as one vector, and sizes), `policy`
(what a rank policy is told and answers), `limits` (what holds for every policy). The built-in policy: `threshold` (its
keys), `patient_cuts` (its decision). Why indices become unimportant: `objective` (the pressure on gates, and the target
size). How a decision is carried out: `sync` (the processes agree), `resize` (new tensors of a layer), `adaptation` (all
of the above at each sync), then `rebuild` (in a run with DeepSpeed) or `scheduler` (in a loop of the caller's).
"""

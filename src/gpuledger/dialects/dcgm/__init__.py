"""The dcgm dialect: the families and labels of dcgm-exporter, computed without DCGM.

In: a NodeState and the text of a collectors file. Out: Families. Imports: model, dialects.settings and this
package.
"""

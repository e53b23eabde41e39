# Airflow is not installed beside our own packages: its types are unknown here.
# pyright: basic, reportMissingImports=false
"""A DAG for Airflow: it runs the tasks that SLIPWAY_PLAY names once, by Airflow's own `dag.test()`.

Owns the final states of its tasks, which it prints as JSON. The file is copied into Airflow's folder of DAGs and runs
in Airflow's environment: it needs only the standard library, Airflow and the adapter.
"""

import datetime
import json
import os
import sys

from airflow.sdk import DAG, task

from slipway.adapters.airflow import SlipwayRunOperator

wanted = json.loads(os.environ["SLIPWAY_PLAY"])
with DAG("slipway_play", schedule=None, start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)) as dag:
    made = []
    for name, fields in wanted.items():
        if "execution_timeout" in fields:
            fields["execution_timeout"] = datetime.timedelta(seconds=fields["execution_timeout"])
        made.append(SlipwayRunOperator(task_id=name, **fields))

    @task(trigger_rule="all_done")
    def after() -> str:
        """Run in any case, after all other tasks have ended."""
        return "done"

    made >> after()  # pyright: ignore[reportUnusedExpression, reportOperatorIssue]

if __name__ == "__main__":
    run = dag.test()
    found = {each.task_id: str(each.state) for each in run.get_task_instances()}
    sys.stdout.write(f"\nrun: {run.run_id}\nfound: {json.dumps(found)}\n")

#!/bin/sh
#SBATCH -J sweep -n 1 -c 2
#SBATCH --array=0-4:2%2
#SBATCH --mem-per-cpu=4000 -t 90
python sweep.py --index "$SLURM_ARRAY_TASK_ID"

// Command etcd is the etcd server of the release that this Kubernetes comes with. Older ones cannot say how far a watch
// has come, and then the API server reads every consistent LIST from etcd and decodes it anew.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
